//! As much of the Redis protocol as it takes to ask a server for INFO and PING, on a blocking socket: what is
//! measured with it has no client library in it.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// A connection that one command after the other is sent on.
#[derive(Debug)]
pub(crate) struct Wire {
    stream: BufReader<TcpStream>,
}

impl Wire {
    /// Connects to `redis://[[user]:password@]host:port[/…]`, and says who it is if the URL does.
    pub(crate) fn connect(url: &str) -> io::Result<Wire> {
        let (login, address) = parts(url)?;
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        let mut wire = Wire {
            stream: BufReader::new(stream),
        };
        match login {
            Some(("", password)) => wire.command(&["AUTH", password]).map(drop)?,
            Some((user, password)) => wire.command(&["AUTH", user, password]).map(drop)?,
            None => {}
        }
        Ok(wire)
    }

    /// Sends one command whose reply is a string, and waits for it.
    pub(crate) fn command(&mut self, words: &[&str]) -> io::Result<String> {
        let mut request = format!("*{}\r\n", words.len());
        for word in words {
            request.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        self.stream.get_mut().write_all(request.as_bytes())?;

        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        let (kind, rest) = line.trim_end().split_at_checked(1).unwrap_or_default();
        match kind {
            "+" | ":" => Ok(rest.to_owned()),
            "$" => {
                let length: usize = rest.parse().map_err(|_| malformed(&line))?;
                let mut body = vec![0; length + 2];
                self.stream.read_exact(&mut body)?;
                body.truncate(length);
                String::from_utf8(body).map_err(|_| malformed("not UTF-8"))
            }
            "-" => Err(io::Error::other(format!("the server says: {rest}"))),
            _ => Err(malformed(&line)),
        }
    }

    /// The round trip of a PING, one value per try.
    pub(crate) fn ping(&mut self, tries: usize) -> io::Result<Vec<Duration>> {
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

fn malformed(what: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("unexpected reply: {}", what.trim_end()),
    )
}
