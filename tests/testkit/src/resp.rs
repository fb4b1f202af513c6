//! The Redis protocol, RESP2 and RESP3: commands on the wire, and replies that are easy to compare in
//! assertions.

use std::collections::HashMap;
use std::fmt;
use std::io::{self, BufRead};

/// One reply of a server. A map is an array of alternating fields and values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resp {
    Nil,
    Int(i64),
    Text(String),
    Error(String),
    Array(Vec<Resp>),
    /// A message between the replies, in RESP3.
    Push(Vec<Resp>),
}

impl Resp {
    #[track_caller]
    pub fn int(&self) -> i64 {
        match self {
            Resp::Int(value) => *value,
            Resp::Text(text) => text
                .parse()
                .unwrap_or_else(|_| panic!("not an integer: {text:?}")),
            other => panic!("not an integer: {other:?}"),
        }
    }

    #[track_caller]
    pub fn text(&self) -> &str {
        match self {
            Resp::Text(text) => text,
            other => panic!("not a text: {other:?}"),
        }
    }

    #[track_caller]
    pub fn array(&self) -> &[Resp] {
        match self {
            Resp::Array(items) | Resp::Push(items) => items,
            other => panic!("not an array: {other:?}"),
        }
    }

    #[track_caller]
    pub fn texts(&self) -> Vec<String> {
        self.array().iter().map(|item| item.text().to_owned()).collect()
    }

    /// Alternating fields and values, as in replies to `HGETALL` and `CONFIG GET`.
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

    /// Reads one reply or message. The error is `UnexpectedEof` if the stream ends too early.
    pub fn read_from(stream: &mut impl BufRead) -> io::Result<Resp> {
        let mut line = String::new();
        stream.read_line(&mut line)?;
        let line = line.strip_suffix("\r\n").ok_or(io::ErrorKind::UnexpectedEof)?;
        let (kind, rest) = line.split_at_checked(1).ok_or(io::ErrorKind::InvalidData)?;
        let number = || rest.parse::<i64>().map_err(|_| io::ErrorKind::InvalidData);
        // In RESP2, a missing value has the length -1.
        let length = || Ok::<_, io::Error>(usize::try_from(number()?).ok());
        let mut items =
            |count: usize| -> io::Result<_> { (0..count).map(|_| Resp::read_from(stream)).collect() };
        Ok(match kind {
            "+" => Resp::Text(rest.to_owned()),
            "-" => Resp::Error(rest.to_owned()),
            ":" => Resp::Int(number()?),
            "_" => Resp::Nil,
            "*" => match length()? {
                Some(count) => Resp::Array(items(count)?),
                None => Resp::Nil,
            },
            "%" => Resp::Array(items(2 * length()?.unwrap_or(0))?),
            ">" => Resp::Push(items(length()?.unwrap_or(0))?),
            "$" => match length()? {
                Some(length) => {
                    let mut bytes = vec![0; length + 2];
                    stream.read_exact(&mut bytes)?;
                    bytes.truncate(length);
                    Resp::Text(String::from_utf8_lossy(&bytes).into_owned())
                }
                None => Resp::Nil,
            },
            _ => return Err(io::ErrorKind::InvalidData.into()),
        })
    }
}

/// Formats a reply as text: the elements of an array are separated by spaces, and a missing value is empty.
impl fmt::Display for Resp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Resp::Nil => Ok(()),
            Resp::Int(number) => number.fmt(f),
            Resp::Text(text) | Resp::Error(text) => text.fmt(f),
            Resp::Array(items) | Resp::Push(items) => {
                let words: Vec<_> = items.iter().map(ToString::to_string).collect();
                words.join(" ").fmt(f)
            }
        }
    }
}

/// The bytes of a command.
pub(crate) fn command(words: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
    }
    bytes
}
