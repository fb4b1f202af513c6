//! The first words on a connection: the client says who it is and which protocol it speaks, and the server
//! what it is. All of it takes one round trip.

use fred::types::Value;
use fred::types::config::Config;

use super::connection::{Line, Unanswered};
use super::failure;
use super::resp::named_in;
use super::socket::unanswered;
use crate::protocol::interface::Failure;
use crate::protocol::label::Label;
use crate::types::error::ServerError;

/// From this version on, a server knows `CLIENT SETINFO`. An older one would write the unknown command to the
/// log of its ACL.
const KNOWS_LIBRARIES: (u32, u32) = (7, 2);

/// Authenticates as this configuration says, selects its database, and tells the server, for its
/// `CLIENT LIST`, who uses the connection: the label as the connection's name, and this library with its
/// version. Returns what the server says of itself.
pub(super) async fn greet(line: &Line, config: &Config, label: Option<&Label>) -> Result<Value, Failure> {
    let mut hello = vec!["HELLO", "3"];
    if let Some(password) = &config.password {
        hello.extend(["AUTH", config.username.as_deref().unwrap_or("default"), password]);
    }
    hello.extend(label.iter().flat_map(|label| ["SETNAME", label.as_str()]));
    let hello = line.ask(&hello);
    let number = config.database.map(|number| number.to_string());
    let selected = number.map(|number| line.call(&["SELECT", &number]));

    let said = hello.await.map_err(|why| match why {
        Unanswered::Error(said) => refused(&said),
        // One side may not have accepted the other's certificate.
        Unanswered::Lost(why) => why,
        Unanswered::Late => unanswered(),
    })?;
    if named_in(&said, "proto").as_deref() != Some("3") {
        return Err(refused(&format!("{said:?} as the reply to HELLO 3")));
    }
    if let Some(selected) = selected {
        let selected = selected.await;
        selected.map_err(|failure| failure::of_a_database(failure, config.database))?;
    }
    if version(&said).is_some_and(|version| version >= KNOWS_LIBRARIES) {
        // A server that refuses either of them loses nothing else.
        drop(line.ask(&["CLIENT", "SETINFO", "LIB-NAME", env!("CARGO_PKG_NAME")]));
        drop(line.ask(&["CLIENT", "SETINFO", "LIB-VER", env!("CARGO_PKG_VERSION")]));
    }
    Ok(said)
}

/// The failure of a HELLO that is answered with these words.
fn refused(said: &str) -> Failure {
    // The last words are those of proxies.
    let is_unknown = ["unknown command", "NOPROTO", "HELLO 3", "unsupported command"]
        .iter()
        .any(|words| said.contains(words));
    if !is_unknown {
        return failure::of_reply(said);
    }
    Failure::Refused(ServerError::new(format!(
        "{said} (the server must speak RESP3, as Redis from 6.0 on and Valkey do, and so must a proxy before it)"
    )))
}

fn version(said: &Value) -> Option<(u32, u32)> {
    let version = named_in(said, "version")?;
    let mut parts = version.split('.').map_while(|part| part.parse().ok());
    Some((parts.next()?, parts.next()?))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::connection::Connection;
    use super::super::connection::tests::{Peer, telling};
    use super::*;

    /// What comes of this reply to `HELLO`.
    async fn greeted(reply: &str) -> (Result<Value, Failure>, Connection, Peer) {
        let (connection, mut peer) = telling(Arc::new(()));
        peer.says(reply).await;
        let config = Config::default();
        let said = greet(connection.line(), &config, None).await;
        peer.hears(&[&["HELLO", "3"]]).await;
        (said, connection, peer)
    }

    #[tokio::test]
    async fn a_server_that_does_not_speak_resp3_is_refused_with_a_reason() {
        for reply in [
            "-ERR unknown command 'HELLO', with args beginning with: '3'\r\n",
            "-NOPROTO unsupported protocol version\r\n",
            "-ERR unsupported command\r\n",
            // Messages would look like replies.
            "*4\r\n$7\r\nversion\r\n$5\r\n8.0.0\r\n$5\r\nproto\r\n:2\r\n",
            "+OK\r\n",
        ] {
            match greeted(reply).await.0 {
                Err(Failure::Refused(error)) => assert!(error.to_string().contains("RESP3"), "{error}"),
                said => panic!("{reply:?}: {said:?}"),
            }
        }
    }

    #[tokio::test]
    async fn a_server_that_is_not_ready_is_waited_for() {
        let (said, ..) = greeted("-LOADING Redis is loading the dataset in memory\r\n").await;
        assert!(matches!(said, Err(Failure::NotExecuted(_))), "{said:?}");
        let (said, ..) = greeted("-WRONGPASS invalid username-password pair\r\n").await;
        assert!(matches!(said, Err(Failure::Refused(_))), "{said:?}");
    }

    /// An older server writes unknown commands to the log of its ACL.
    #[tokio::test]
    async fn only_a_server_that_knows_libraries_is_told_of_this_one() {
        for (version, is_told) in [
            ("6.2.14", false),
            ("7.0.15", false),
            ("7.2.0", true),
            ("10.0", true),
        ] {
            let length = version.len();
            let hello = format!("%2\r\n$7\r\nversion\r\n${length}\r\n{version}\r\n$5\r\nproto\r\n:3\r\n");
            let (said, connection, mut peer) = greeted(&hello).await;
            said.unwrap();
            if is_told {
                let version = env!("CARGO_PKG_VERSION");
                peer.hears(&[
                    &["CLIENT", "SETINFO", "LIB-NAME", "fairlock"],
                    &["CLIENT", "SETINFO", "LIB-VER", version],
                ])
                .await;
            }
            drop(connection.line().ask(&["PING"]));
            peer.hears(&[&["PING"]]).await;
        }
    }

    /// A server on the other side of the world is greeted in one round trip.
    #[tokio::test]
    async fn nothing_of_the_greeting_waits_for_a_reply() {
        let (connection, mut peer) = telling(Arc::new(()));
        let config = Config {
            username: Some("user".to_owned()),
            password: Some("secret".to_owned()),
            database: Some(3),
            ..Config::default()
        };
        let label = Label::new("web:1").unwrap();
        let greeted = greet(connection.line(), &config, Some(&label));
        let answered = async {
            let hello = ["HELLO", "3", "AUTH", "user", "secret", "SETNAME", label.as_str()];
            peer.hears(&[&hello, &["SELECT", "3"]]).await;
            peer.says("%1\r\n+proto\r\n:3\r\n-ERR DB index is out of range\r\n")
                .await;
        };
        let (said, ()) = tokio::join!(greeted, answered);
        match said {
            Err(Failure::Refused(error)) => assert!(error.to_string().contains("database 3"), "{error}"),
            said => panic!("{said:?}"),
        }
    }
}
