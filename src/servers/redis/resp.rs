//! Reads RESP3 frames (<https://redis.io/docs/latest/develop/reference/protocol-spec/>).
//!
//! The bytes and the parts of a frame are counted before they are parsed, without recursion, and each of them
//! once. So a server can make this client neither overflow its stack nor allocate more than some times
//! [`MAX_LENGTH`].

use std::mem;

use fred::types::Value;
use redis_protocol::resp3::decode::complete::decode_range;
use redis_protocol::resp3::types::RangeFrame;

/// The longest frame. The slots of a large and fragmented cluster take some MB.
const MAX_LENGTH: usize = 16 << 20;
/// How many parts a frame may have, each of which takes some 160 bytes. A cluster whose 16,384 slots are all
/// apart has 20 for each.
const MAX_PARTS: usize = 400_000;
/// How deep frames may be nested. The slots of a cluster are nested four times.
const MAX_DEPTH: usize = 16;
/// How much is read at once, unless a frame is longer.
const READ_AT_ONCE: usize = 16 << 10;

/// What a server says at a time.
#[derive(Debug, PartialEq)]
pub(crate) enum Frame<'a> {
    /// A reply. A map is an array of alternating names and values.
    Reply(Value),
    /// An error, as the reply to a command.
    Error(String),
    /// The words of a message that is no reply. A number is empty.
    Push(Vec<&'a [u8]>),
}

/// Bytes that are no frame, or that of none that this client accepts. Nothing after them can be read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) &'static str);

/// Splits what is read into frames.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    /// Read bytes are at `start..filled`.
    buffer: Vec<u8>,
    start: usize,
    filled: usize,
    scan: Scan,
}

impl Frames {
    /// Where the next bytes must be written. [`Frames::filled`] tells how many there are.
    pub(crate) fn space(&mut self) -> &mut [u8] {
        if self.start == self.filled {
            (self.start, self.filled) = (0, 0);
            // The memory for a long frame is not kept.
            self.buffer.truncate(READ_AT_ONCE);
            self.buffer.shrink_to(READ_AT_ONCE);
        } else if self.filled == self.buffer.len() {
            self.buffer.copy_within(self.start..self.filled, 0);
            self.filled -= mem::take(&mut self.start);
        }
        if self.filled == self.buffer.len() {
            let length = (2 * self.buffer.len()).max(READ_AT_ONCE);
            self.buffer.resize(length, 0);
        }
        &mut self.buffer[self.filled..]
    }

    pub(crate) fn filled(&mut self, more: usize) {
        self.filled += more;
    }

    /// Takes out the next frame, if all of it is there.
    pub(crate) fn next(&mut self) -> Result<Option<Frame<'_>>, Malformed> {
        let bytes = &self.buffer[self.start..self.filled];
        let Some(length) = self.scan.length_of_first(bytes)? else {
            return Ok(None);
        };
        self.start += length;
        match decode_range(&bytes[..length]) {
            Ok(Some((frame, _))) => Ok(Some(read(&frame, bytes))),
            Ok(None) | Err(_) => Err(Malformed("it is no RESP3")),
        }
    }
}

fn read<'a>(frame: &RangeFrame, bytes: &'a [u8]) -> Frame<'a> {
    match frame {
        RangeFrame::SimpleError { data, .. } | RangeFrame::BlobError { data, .. } => {
            Frame::Error(String::from_utf8_lossy(&bytes[data.0..data.1]).into_owned())
        }
        RangeFrame::Push { data, .. } => {
            let words = data.iter().map(|word| match word {
                RangeFrame::BlobString { data, .. } | RangeFrame::SimpleString { data, .. } => {
                    &bytes[data.0..data.1]
                }
                _ => &[],
            });
            Frame::Push(words.collect())
        }
        frame => Frame::Reply(value(frame, bytes)),
    }
}

fn value(frame: &RangeFrame, bytes: &[u8]) -> Value {
    match frame {
        RangeFrame::BlobString { data, .. }
        | RangeFrame::SimpleString { data, .. }
        | RangeFrame::VerbatimString { data, .. }
        | RangeFrame::BigNumber { data, .. }
        | RangeFrame::SimpleError { data, .. }
        | RangeFrame::BlobError { data, .. } => {
            let bytes = &bytes[data.0..data.1];
            match std::str::from_utf8(bytes) {
                Ok(text) => Value::String(text.into()),
                Err(_) => Value::Bytes(bytes.to_vec().into()),
            }
        }
        RangeFrame::Number { data, .. } => Value::Integer(*data),
        RangeFrame::Double { data, .. } => Value::Double(*data),
        RangeFrame::Boolean { data, .. } => Value::Boolean(*data),
        RangeFrame::Array { data, .. } | RangeFrame::Push { data, .. } => {
            Value::Array(data.iter().map(|part| value(part, bytes)).collect())
        }
        RangeFrame::Set { data, .. } => Value::Array(data.iter().map(|part| value(part, bytes)).collect()),
        RangeFrame::Map { data, .. } => {
            let pairs = data.iter().flat_map(|pair| [pair.0, pair.1]);
            Value::Array(pairs.map(|part| value(part, bytes)).collect())
        }
        RangeFrame::Null | RangeFrame::Hello { .. } | RangeFrame::ChunkedString(_) => Value::Null,
    }
}

/// A field of a reply, which is an array of alternating names and values.
pub(super) fn named_in(reply: &Value, name: &str) -> Option<String> {
    match reply {
        Value::Map(fields) => fields.get(&name.into())?.as_string(),
        Value::Array(parts) => {
            let mut pairs = parts.chunks_exact(2);
            pairs.find(|pair| pair[0].as_str().as_deref() == Some(name))?[1].as_string()
        }
        _ => None,
    }
}

/// Finds the end of the first frame. What was found is kept until the rest of the frame is there.
#[derive(Debug, Default)]
struct Scan {
    /// Where the next header begins, behind all that is known to be a part of the frame.
    at: usize,
    /// Up to here, there is no end of that header.
    searched: usize,
    /// The arrays around `at`, the outermost one first.
    open: Vec<Open>,
    /// The parts of all arrays so far.
    parts: usize,
    /// The end of the frame is at `at`.
    is_known: bool,
}

/// An array, a map or the like, whose parts are not all there yet.
#[derive(Debug)]
struct Open {
    /// How many of its parts are missing.
    left: usize,
    /// Attributes stand before a frame, and are none themselves.
    is_attributes: bool,
}

impl Scan {
    /// The length of the frame at the start of these bytes, if all of it is there. Then the next call is for
    /// the next frame.
    fn length_of_first(&mut self, bytes: &[u8]) -> Result<Option<usize>, Malformed> {
        while !self.is_known && self.at < bytes.len() {
            if !b"+-:_,#($=!*~>%|".contains(&bytes[self.at]) {
                return Err(Malformed("it is no RESP3"));
            }
            let Some(end) = self.end_of_header(bytes) else {
                // Only the text of an error is long.
                let is_too_long = bytes.len() - self.at > MAX_LENGTH;
                return if is_too_long { Err(TOO_LONG) } else { Ok(None) };
            };
            let header = &bytes[self.at + 1..end - 2];
            match bytes[self.at] {
                b'$' | b'=' | b'!' => self.ends(end.saturating_add(count(header)?).saturating_add(2))?,
                b'*' | b'~' | b'>' => self.opens(end, count(header)?, false)?,
                b'%' => self.opens(end, count(header)?.saturating_mul(2), false)?,
                b'|' => self.opens(end, count(header)?.saturating_mul(2), true)?,
                _ => self.ends(end)?,
            }
        }
        if !self.is_known || self.at > bytes.len() {
            return Ok(None);
        }
        Ok(Some(mem::take(self).at))
    }

    /// The position behind the line break that ends the header.
    fn end_of_header(&mut self, bytes: &[u8]) -> Option<usize> {
        self.searched = self.searched.max(self.at + 1);
        while let Some(found) = bytes.get(self.searched..)?.iter().position(|byte| *byte == b'\n') {
            self.searched += found + 1;
            if bytes[self.searched - 2] == b'\r' {
                return Some(self.searched);
            }
        }
        self.searched = bytes.len();
        None
    }

    /// A part ends here, and with it all arrays of which it is the last part.
    fn ends(&mut self, end: usize) -> Result<(), Malformed> {
        if end > MAX_LENGTH {
            return Err(TOO_LONG);
        }
        self.at = end;
        while let Some(around) = self.open.last_mut() {
            around.left -= 1;
            if around.left > 0 {
                return Ok(());
            }
            let ended = self.open.pop();
            if ended.is_some_and(|ended| ended.is_attributes) {
                return Ok(());
            }
        }
        self.is_known = true;
        Ok(())
    }

    /// An array with so many parts begins.
    fn opens(&mut self, end: usize, parts: usize, is_attributes: bool) -> Result<(), Malformed> {
        if self.open.len() == MAX_DEPTH {
            return Err(Malformed("it is nested too deeply"));
        }
        self.parts = self.parts.saturating_add(parts);
        // Each part has a byte at least.
        if end.saturating_add(parts) > MAX_LENGTH || self.parts > MAX_PARTS {
            return Err(TOO_LONG);
        }
        match (parts, is_attributes) {
            (0, false) => self.ends(end)?,
            (0, true) => self.at = end,
            (left, _) => {
                self.at = end;
                self.open.push(Open { left, is_attributes });
            }
        }
        Ok(())
    }
}

const TOO_LONG: Malformed = Malformed("it is too long");

fn count(header: &[u8]) -> Result<usize, Malformed> {
    let number = std::str::from_utf8(header)
        .ok()
        .and_then(|text| text.parse::<u32>().ok());
    match number {
        Some(number) => Ok(number as usize),
        // Also a part whose length is told later, which no server sends.
        None => Err(Malformed("it is no RESP3")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::fuzzing::read_in_parts;

    #[test]
    fn frames_are_read_alike_in_whatever_parts_they_come() {
        let long = "x".repeat(3 * READ_AT_ONCE);
        let bytes = format!(
            "+OK\r\n$5\r\na\r\nb\r\r\n-ERR no\nline\r\n:7\r\n_\r\n#t\r\n,1.5\r\n(12\r\n=7\r\ntxt:abc\r\n!3\r\nERR\r\n\
             *2\r\n*0\r\n%1\r\n+a\r\n*1\r\n:1\r\n|1\r\n+ttl\r\n:3\r\n*1\r\n|1\r\n+b\r\n_\r\n~1\r\n:2\r\n%0\r\n\
             >3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$2\r\nhi\r\n${}\r\n{long}\r\n$0\r\n\r\n+end\r\n",
            long.len()
        );
        let whole = read_in_parts(bytes.as_bytes(), bytes.len());
        assert_eq!((whole.0.len(), &whole.1), (17, &None), "{whole:?}");
        let last = format!("{:?}", Frame::Reply(Value::from("end")));
        assert_eq!(*whole.0.last().unwrap(), last.len().to_string());
        for length in [1, 2, 3, 7, 100, READ_AT_ONCE] {
            assert_eq!(read_in_parts(bytes.as_bytes(), length), whole, "{length}");
        }
    }

    /// Race: A server sends what overflows the stack of a client that reads it by recursion, or announces
    /// more than there is memory.
    #[test]
    fn neither_depth_nor_length_of_a_frame_harms_the_client() {
        let deep = "*1\r\n".repeat(1_000_000);
        let long = "+".to_owned() + &"x".repeat(MAX_LENGTH + 1);
        for (bytes, why) in [
            (&*deep, "it is nested too deeply"),
            ("|1\r\n|1\r\n*1\r\n$2147483647\r\n", "it is too long"),
            ("$2147483647\r\n", "it is too long"),
            ("*2147483647\r\n", "it is too long"),
            ("%2147483648\r\n", "it is too long"),
            ("*2\r\n$16777210\r\n", "it is too long"),
            ("*400001\r\n", "it is too long"),
            ("*200001\r\n%100000\r\n", "it is too long"),
            ("$99999999999999999999\r\n", "it is no RESP3"),
            (&long, "it is too long"),
        ] {
            let (read, ended) = read_in_parts(bytes.as_bytes(), READ_AT_ONCE);
            assert_eq!((read.len(), ended), (0, Some(Malformed(why))), "{:.20}", bytes);
        }
    }

    #[test]
    fn what_is_no_frame_is_told() {
        for bytes in [
            "HTTP/1.1 400 Bad Request\r\n",
            "\r\n",
            "$-1\r\n",
            "*?\r\n",
            "$x\r\n",
            ":\r\n",
            "*1\r\n\r\n",
        ] {
            let (read, ended) = read_in_parts(bytes.as_bytes(), 1);
            assert_eq!((read.len(), ended.is_some()), (0, true), "{bytes:?}");
        }
    }

    #[test]
    fn memory_for_a_long_frame_is_not_kept() {
        let mut frames = Frames::default();
        let long = format!("${}\r\n{}\r\n", 1 << 20, "x".repeat(1 << 20));
        let mut rest = long.as_bytes();
        while !rest.is_empty() {
            let space = frames.space();
            let fits = rest.len().min(space.len());
            space[..fits].copy_from_slice(&rest[..fits]);
            frames.filled(fits);
            rest = &rest[fits..];
        }
        assert!(matches!(frames.next(), Ok(Some(Frame::Reply(Value::String(_))))));
        assert!(matches!(frames.next(), Ok(None)));
        assert_eq!(frames.space().len(), READ_AT_ONCE);
        assert_eq!(frames.buffer.capacity(), READ_AT_ONCE);
    }
}
