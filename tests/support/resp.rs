//! A client of the Redis protocol (RESP2) that does one thing at a time, and replies that are easy to assert on.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// One reply of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resp {
    Nil,
    Int(i64),
    Text(String),
    Error(String),
    Array(Vec<Resp>),
}

impl Resp {
    #[track_caller]
    pub fn int(&self) -> i64 {
        match self {
            Resp::Int(value) => *value,
            Resp::Text(text) => text.parse().unwrap_or_else(|_| panic!("no integer: {text:?}")),
            other => panic!("no integer: {other:?}"),
        }
    }

    #[track_caller]
    pub fn text(&self) -> &str {
        match self {
            Resp::Text(text) => text,
            other => panic!("no text: {other:?}"),
        }
    }

    #[track_caller]
    pub fn array(&self) -> &[Resp] {
        match self {
            Resp::Array(items) => items,
            other => panic!("no array: {other:?}"),
        }
    }

    #[track_caller]
    pub fn texts(&self) -> Vec<String> {
        self.array().iter().map(|item| item.text().to_owned()).collect()
    }

    /// Field and value in turn, as `HGETALL` and `CONFIG GET` answer.
    #[track_caller]
    pub fn map(&self) -> HashMap<String, String> {
        let texts = self.texts();
        texts
            .chunks_exact(2)
            .map(|pair| (pair[0].clone(), pair[1].clone()))
            .collect()
    }

    pub fn is_nil(&self) -> bool {
        *self == Resp::Nil
    }

    pub fn is_error(&self) -> bool {
        matches!(self, Resp::Error(_))
    }
}

/// A connection to a server.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<TcpStream>,
}

impl Client {
    pub async fn connect(port: u16) -> io::Result<Client> {
        let stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.set_nodelay(true)?;
        Ok(Client {
            stream: BufReader::new(stream),
        })
    }

    /// Sends a command and reads its reply. An error that the server answers is a reply like any other.
    pub async fn command(&mut self, words: &[&str]) -> io::Result<Resp> {
        self.send(words).await?;
        self.read().await
    }

    pub async fn send(&mut self, words: &[&str]) -> io::Result<()> {
        let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            bytes.extend_from_slice(word.as_bytes());
            bytes.extend_from_slice(b"\r\n");
        }
        self.stream.write_all(&bytes).await
    }

    /// Reads the next reply or published message.
    pub async fn read(&mut self) -> io::Result<Resp> {
        read_value(&mut self.stream).await
    }

    /// The next published message as channel and payload, or nothing within `limit`.
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

type Reading<'a> = Pin<Box<dyn Future<Output = io::Result<Resp>> + Send + 'a>>;

fn read_value(stream: &mut BufReader<TcpStream>) -> Reading<'_> {
    Box::pin(async move {
        let mut line = String::new();
        stream.read_line(&mut line).await?;
        let line = line.strip_suffix("\r\n").ok_or(io::ErrorKind::UnexpectedEof)?;
        let (kind, rest) = line.split_at_checked(1).ok_or(io::ErrorKind::InvalidData)?;
        match kind {
            "+" => Ok(Resp::Text(rest.to_owned())),
            "-" => Ok(Resp::Error(rest.to_owned())),
            ":" => Ok(Resp::Int(number(rest)?)),
            "$" => match usize::try_from(number(rest)?) {
                Ok(length) => {
                    let mut bytes = vec![0; length + 2];
                    stream.read_exact(&mut bytes).await?;
                    bytes.truncate(length);
                    Ok(Resp::Text(String::from_utf8_lossy(&bytes).into_owned()))
                }
                Err(_) => Ok(Resp::Nil),
            },
            "*" => match usize::try_from(number(rest)?) {
                Ok(length) => {
                    let mut items = Vec::with_capacity(length);
                    for _ in 0..length {
                        items.push(read_value(stream).await?);
                    }
                    Ok(Resp::Array(items))
                }
                Err(_) => Ok(Resp::Nil),
            },
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    })
}

fn number(text: &str) -> io::Result<i64> {
    text.parse().map_err(|_| io::ErrorKind::InvalidData.into())
}
