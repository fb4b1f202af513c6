//! A network with a delay: a TCP proxy on the loopback that forwards every byte a fixed time later, in both
//! directions.
//!
//! It is made of plain threads, two for each direction of a connection. tokio's timers count in milliseconds,
//! and the delays of interest are shorter than that.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// Listens on a free loopback port for connections to `target`, until the process ends.
pub fn start(target: &str, delay: Duration) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let address = listener.local_addr()?;
    let target = target.to_owned();
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            // If the server is not there, the end of its connection tells the client.
            let _ = join(&client, &target, delay);
        }
    });
    Ok(address)
}

fn join(client: &TcpStream, target: &str, delay: Duration) -> io::Result<()> {
    let server = TcpStream::connect(target)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    pass(client.try_clone()?, server.try_clone()?, delay);
    pass(server, client.try_clone()?, delay);
    Ok(())
}

/// Moves bytes from one side to the other, each after the delay. Bytes that are read while others wait are
/// not delayed further, because every piece has its own time.
fn pass(mut from: TcpStream, mut to: TcpStream, delay: Duration) {
    let (pieces, due) = mpsc::channel::<(Instant, Vec<u8>)>();
    thread::spawn(move || {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(length @ 1..) = from.read(&mut buffer) {
            if pieces
                .send((Instant::now() + delay, buffer[..length].to_vec()))
                .is_err()
            {
                break;
            }
        }
    });
    thread::spawn(move || {
        for (at, bytes) in due {
            thread::sleep(at.saturating_duration_since(Instant::now()));
            if to.write_all(&bytes).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
}
