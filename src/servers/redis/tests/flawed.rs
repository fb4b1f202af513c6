//! Servers that accept any command, and have a flaw.

use std::io::{BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use fairlock_testkit::Resp;

/// The reply of a server that speaks RESP3, and says no more of itself.
const HELLO: &str = "%1\r\n$5\r\nproto\r\n:3\r\n";

/// Starts a server that accepts any command, and closes its first and its third connection as soon as they
/// are open. Returns its port.
pub(super) fn loses_new_connections() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let (stream, is_lost) = (stream.unwrap(), [0, 2].contains(&number));
            std::thread::spawn(move || answer(stream, is_lost));
        }
    });
    port
}

fn answer(mut stream: TcpStream, is_lost: bool) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    while let Ok(command) = Resp::read_from(&mut reader) {
        // With a HELLO, a connection for calls is open.
        let is_open = command.texts()[0] == "HELLO";
        let reply = if is_open { HELLO } else { "+OK\r\n" };
        if stream.write_all(reply.as_bytes()).is_err() || (is_open && is_lost) {
            return;
        }
    }
}

/// Starts a server that is old, and closes the connection after it said so. From then on it says that it is
/// fresh. Returns its port, and the questions for its age and the `SCRIPT LOAD` that it was sent.
pub(super) fn restarts_after_info() -> (u16, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let told = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&told);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, told) = (stream.unwrap(), Arc::clone(&told));
            std::thread::spawn(move || answer_and_restart(stream, &told));
        }
    });
    (port, heard)
}

fn answer_and_restart(mut stream: TcpStream, told: &Mutex<Vec<String>>) {
    let bulk = |text: &str| format!("${}\r\n{text}\r\n", text.len());
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut is_over = false;
    while let Ok(command) = Resp::read_from(&mut reader) {
        let command = command.texts().join(" ").to_uppercase();
        let mut told = told.lock().unwrap();
        let reply = if command.starts_with("HELLO") {
            HELLO.to_owned()
        } else if command == "INFO SERVER" {
            is_over = told.is_empty();
            told.push(command);
            let uptime = if told.len() < 2 { 1_000_000 } else { 0 };
            bulk(&format!("redis_version:8.2.3\r\nuptime_in_seconds:{uptime}\r\n"))
        } else if command.starts_with("SCRIPT LOAD") {
            told.push("SCRIPT LOAD".to_owned());
            bulk("sha")
        } else if let Some(nonce) = command.strip_prefix("PING ") {
            bulk(nonce)
        } else {
            "+OK\r\n".to_owned()
        };
        if stream.write_all(reply.as_bytes()).is_err() || is_over {
            return;
        }
    }
}
