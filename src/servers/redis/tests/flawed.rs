//! A server that accepts any command, and has a flaw.

use std::io::{BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use fairlock_testkit::Resp;

/// The flaw of a server that accepts any command.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::servers::redis) enum Flaw {
    /// It answers each PING with the nonce of the previous one.
    Desynchronised,
    /// It closes the connection after the echo of a PING with a nonce.
    HangsUp,
    /// It is busy at every other SSUBSCRIBE, and the PING after it.
    BusyAtTimes,
    /// It closes its first and its third connection as soon as they are open.
    LosesNewConnections,
}

/// Starts such a server, and returns its port.
pub(in crate::servers::redis) fn flawed(flaw: Flaw) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let stream = stream.unwrap();
            std::thread::spawn(move || answer(stream, number, flaw));
        }
    });
    port
}

fn answer(stream: TcpStream, number: usize, flaw: Flaw) {
    const BUSY: &str = "-BUSY Redis is busy running a script.\r\n";
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let (mut writer, mut last, mut subscribed, mut is_busy) = (stream, "0".to_owned(), 0, false);
    while let Ok(command) = Resp::read_from(&mut reader) {
        let words = command.texts();
        let mut is_over = false;
        let reply = match words[0].to_ascii_uppercase().as_str() {
            "PING" if std::mem::take(&mut is_busy) => BUSY.to_owned(),
            "PING" if words.len() == 2 => {
                let before = std::mem::replace(&mut last, words[1].clone());
                is_over = flaw == Flaw::HangsUp;
                let echo = if flaw == Flaw::Desynchronised {
                    &before
                } else {
                    &words[1]
                };
                format!("${}\r\n{echo}\r\n", echo.len())
            }
            "PING" => "+PONG\r\n".to_owned(),
            "CLIENT" => ":1\r\n".to_owned(),
            // With this call, a connection for calls is open.
            "HELLO" => {
                is_over = flaw == Flaw::LosesNewConnections && [0, 2].contains(&number);
                "+OK\r\n".to_owned()
            }
            "SUBSCRIBE" if words.len() == 1 => "-ERR wrong number of arguments\r\n".to_owned(),
            "SUBSCRIBE" => words[1..]
                .iter()
                .map(|channel| {
                    let length = channel.len();
                    format!("*3\r\n$9\r\nsubscribe\r\n${length}\r\n{channel}\r\n:1\r\n")
                })
                .collect(),
            "SSUBSCRIBE" if flaw == Flaw::BusyAtTimes && subscribed % 2 == 1 => {
                subscribed += 1;
                is_busy = true;
                BUSY.to_owned()
            }
            "SSUBSCRIBE" => {
                subscribed += 1;
                let (channel, length) = (&words[1], words[1].len());
                format!("*3\r\n$10\r\nssubscribe\r\n${length}\r\n{channel}\r\n:1\r\n")
            }
            _ => "+OK\r\n".to_owned(),
        };
        if writer.write_all(reply.as_bytes()).is_err() || is_over {
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
    let (mut is_known, mut is_over) = (false, false);
    while let Ok(command) = Resp::read_from(&mut reader) {
        let command = command.texts().join(" ").to_uppercase();
        let mut told = told.lock().unwrap();
        let reply = if command == "INFO SERVER" {
            // fred asks once on each connection, for the version.
            if is_known {
                is_over = told.is_empty();
                told.push(command);
            }
            is_known = true;
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
