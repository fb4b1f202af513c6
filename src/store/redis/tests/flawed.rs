//! A server that accepts any command, and has a flaw.

use std::io::{BufReader, Write};
use std::net::{TcpListener, TcpStream};

use fairlock_testkit::Resp;

/// The flaw of a server that accepts any command.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::store::redis) enum Flaw {
    /// It answers each PING with the nonce of the previous one.
    Desynchronised,
    /// It closes the connection after the echo of a PING with a nonce.
    HangsUp,
}

/// Starts such a server, and returns its port.
pub(in crate::store::redis) fn flawed(flaw: Flaw) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let stream = stream.unwrap();
            std::thread::spawn(move || answer(stream, flaw));
        }
    });
    port
}

fn answer(stream: TcpStream, flaw: Flaw) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let (mut writer, mut last) = (stream, "0".to_owned());
    while let Ok(command) = Resp::read_from(&mut reader) {
        let words = command.texts();
        let mut is_over = false;
        let reply = match words[0].to_ascii_uppercase().as_str() {
            "PING" if words.len() == 2 => {
                let before = std::mem::replace(&mut last, words[1].clone());
                is_over = flaw == Flaw::HangsUp;
                let echo = if is_over { &words[1] } else { &before };
                format!("${}\r\n{echo}\r\n", echo.len())
            }
            "PING" => "+PONG\r\n".to_owned(),
            "CLIENT" => ":1\r\n".to_owned(),
            "SUBSCRIBE" if words.len() == 1 => "-ERR wrong number of arguments\r\n".to_owned(),
            "SUBSCRIBE" => words[1..]
                .iter()
                .map(|channel| {
                    let length = channel.len();
                    format!("*3\r\n$9\r\nsubscribe\r\n${length}\r\n{channel}\r\n:1\r\n")
                })
                .collect(),
            _ => "+OK\r\n".to_owned(),
        };
        if writer.write_all(reply.as_bytes()).is_err() || is_over {
            return;
        }
    }
}
