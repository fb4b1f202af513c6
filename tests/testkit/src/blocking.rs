//! A client on a blocking socket, for code outside of a runtime and for measurements that must contain
//! neither a runtime nor a client library.

use std::io::{self, BufReader, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use crate::resp::{Resp, command};

/// Longer than any reply takes.
const READ_TIMEOUT: Duration = Duration::from_secs(20);

/// A connection to a server.
#[derive(Debug)]
pub struct BlockingClient {
    reader: BufReader<TcpStream>,
    /// Commands that have not been sent yet.
    queued: Vec<u8>,
}

impl BlockingClient {
    pub fn connect(address: impl ToSocketAddrs) -> io::Result<BlockingClient> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(READ_TIMEOUT))?;
        Ok(BlockingClient {
            reader: BufReader::new(stream),
            queued: Vec::new(),
        })
    }

    /// Sends a command and reads its reply. An error reply counts as a reply.
    pub fn command(&mut self, words: &[&str]) -> io::Result<Resp> {
        self.queue(words);
        self.send()?;
        self.read()
    }

    /// Keeps a command until [`send`](BlockingClient::send).
    pub fn queue(&mut self, words: &[&str]) {
        self.queued.extend(command(words));
    }

    /// Sends all queued commands.
    pub fn send(&mut self) -> io::Result<()> {
        self.reader.get_mut().write_all(&std::mem::take(&mut self.queued))
    }

    /// Drops all queued commands.
    pub fn forget(&mut self) {
        self.queued.clear();
    }

    /// Reads the next reply or message.
    pub fn read(&mut self) -> io::Result<Resp> {
        Resp::read_from(&mut self.reader)
    }
}
