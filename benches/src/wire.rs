//! Commands on a bare socket, so that no client library is part of the measurement.

use std::io;
use std::time::{Duration, Instant};

use fairlock_testkit::{BlockingClient, Resp};

/// A connection that takes one command after the other.
#[derive(Debug)]
pub struct Wire(BlockingClient);

impl Wire {
    /// Connects to `redis://[[user]:password@]host:port[/…]`, and authenticates if the URL has a password.
    pub fn connect(url: &str) -> io::Result<Wire> {
        let (login, address) = parts(url)?;
        let mut wire = Wire(BlockingClient::connect(address)?);
        match login {
            Some(("", password)) => wire.command(&["AUTH", password]).map(drop)?,
            Some((user, password)) => wire.command(&["AUTH", user, password]).map(drop)?,
            None => {}
        }
        Ok(wire)
    }

    /// Sends one command, and waits for its reply.
    pub fn command(&mut self, words: &[&str]) -> io::Result<String> {
        match self.0.command(words)? {
            Resp::Error(error) => Err(io::Error::other(format!("the server says: {error}"))),
            reply => Ok(reply.to_string()),
        }
    }

    /// The round trip of a PING, one value per try.
    pub fn ping(&mut self, tries: usize) -> io::Result<Vec<Duration>> {
        let mut took = Vec::with_capacity(tries);
        for _ in 0..tries {
            let sent = Instant::now();
            self.command(&["PING"])?;
            took.push(sent.elapsed());
        }
        Ok(took)
    }
}

/// User and password if there are any, and `host:port`.
fn parts(url: &str) -> io::Result<(Option<(&str, &str)>, &str)> {
    let rest = url
        .strip_prefix("redis://")
        .or_else(|| url.strip_prefix("valkey://"))
        .ok_or_else(|| {
            io::Error::other(format!(
                "the comparison needs a URL like redis://127.0.0.1:6379, not {url}"
            ))
        })?;
    let place = rest.split(['/', '?']).next().unwrap_or(rest);
    Ok(match place.rsplit_once('@') {
        Some((login, address)) => (Some(login.split_once(':').unwrap_or(("", login))), address),
        None => (None, place),
    })
}
