//! A client of the Redis protocol that sends one command at a time.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::resp::{Resp, command};

/// A connection to a server.
#[derive(Debug)]
pub struct Client {
    stream: TcpStream,
    /// Bytes of replies that are not complete yet.
    read: Vec<u8>,
}

impl Client {
    pub async fn connect(port: u16) -> io::Result<Client> {
        let stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.set_nodelay(true)?;
        Ok(Client {
            stream,
            read: Vec::new(),
        })
    }

    /// Sends a command and reads its reply. An error reply counts as a reply.
    pub async fn command(&mut self, words: &[&str]) -> io::Result<Resp> {
        self.send(words).await?;
        self.read().await
    }

    pub async fn send(&mut self, words: &[&str]) -> io::Result<()> {
        self.stream.write_all(&command(words)).await
    }

    /// Reads the next reply or published message. Nothing is lost when the call is dropped.
    pub async fn read(&mut self) -> io::Result<Resp> {
        loop {
            let mut rest = &self.read[..];
            match Resp::read_from(&mut rest) {
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {}
                reply => {
                    let taken = self.read.len() - rest.len();
                    self.read.drain(..taken);
                    return reply;
                }
            }
            if self.stream.read_buf(&mut self.read).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// The channel and the payload of the next published message, or `None` after `limit`.
    pub async fn message(&mut self, limit: Duration) -> Option<(String, String)> {
        let reply = timeout(limit, self.read())
            .await
            .ok()?
            .expect("a connection that lives");
        let items = reply.array();
        assert!(items[0].text().ends_with("message"), "no message: {items:?}");
        Some((
            items[items.len() - 2].text().to_owned(),
            items[items.len() - 1].text().to_owned(),
        ))
    }
}
