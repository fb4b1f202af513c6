//! A sentinel that knows nothing of failovers, and names the server that the test chose.

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// Starts a sentinel that names the server on `port` for as long as the runtime lives. Returns the port of
/// the sentinel.
pub(crate) async fn start(port: u16) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let own = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream, port));
        }
    });
    own
}

/// Answers until the client disconnects.
async fn serve(stream: TcpStream, port: u16) -> Option<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let words = command(&mut stream).await?;
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let reply = match words[..] {
            ["PING"] => "+PONG\r\n".to_owned(),
            ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", _] => texts(&["127.0.0.1", &port.to_string()]),
            ["SENTINEL", "MASTER", _] => texts(&["config-epoch", "0"]),
            _ => "-ERR not known\r\n".to_owned(),
        };
        stream.write_all(reply.as_bytes()).await.ok()?;
    }
}

async fn command(stream: &mut BufReader<TcpStream>) -> Option<Vec<String>> {
    let mut words = Vec::new();
    for _ in 0..number(stream).await? {
        let mut word = vec![0; number(stream).await? + 2];
        stream.read_exact(&mut word).await.ok()?;
        words.push(String::from_utf8(word).ok()?.trim_end().to_owned());
    }
    Some(words)
}

/// The number after the `*` or `$` at the start of a line.
async fn number(stream: &mut BufReader<TcpStream>) -> Option<usize> {
    let mut line = String::new();
    stream.read_line(&mut line).await.ok()?;
    line.get(1..)?.trim_end().parse().ok()
}

fn texts(words: &[&str]) -> String {
    let word = |word: &&str| format!("${}\r\n{word}\r\n", word.len());
    format!(
        "*{}\r\n{}",
        words.len(),
        words.iter().map(word).collect::<String>()
    )
}
