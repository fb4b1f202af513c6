//! Classifies errors: what an error means for the call that it answers.

use std::fmt::Display;
use std::io;

use fred::error::{Error, ErrorKind};

use crate::protocol::interface::Failure;
use crate::types::error::ServerError;

/// Error codes of calls that were not executed and may succeed later.
const NOT_EXECUTED: [&str; 13] = [
    "NOSCRIPT",
    "BUSY",
    "LOADING",
    "READONLY",
    "MASTERDOWN",
    "TRYAGAIN",
    "MOVED",
    "ASK",
    "CLUSTERDOWN",
    "OOM",
    "MISCONF",
    "NOREPLICAS",
    // The reply to a wait for replicas, on a server that became a replica itself.
    "UNBLOCKED",
];

/// Classifies an error of fred. If the error is not a reply of the server, the call may have been executed.
pub(super) fn classify(error: &Error) -> Failure {
    match code(error) {
        None => Failure::Unknown(message(error)),
        Some(_) => of_reply(error.details()),
    }
}

/// Classifies an error by the words of the server that replied with it.
pub(super) fn of_reply(said: &str) -> Failure {
    let error = ServerError::new(said);
    match code_of(said) {
        None => Failure::Unknown(error),
        Some(code) if NOT_EXECUTED.contains(&code) => Failure::NotExecuted(error),
        Some("ERR") if is_transient(said) => Failure::NotExecuted(error),
        Some(_) => Failure::Refused(error),
    }
}

/// Classifies the end of a connection.
pub(super) fn of_io(error: io::Error) -> Failure {
    classify_connecting(&error.into())
}

/// Recognises transient errors without a code of their own. The server is full. Or a script reads an
/// undeclared key that has already moved to another server of the cluster. Or a server that should wait for
/// replicas is a replica.
fn is_transient(text: &str) -> bool {
    ["max number of clients", "non local key", "with replica instances"]
        .iter()
        .any(|words| text.contains(words))
}

/// Classifies the error of an attempt to connect. Waiting does not help if one side does not accept the
/// other's certificate. It does if the connection was lost in the handshake.
pub(super) fn classify_connecting(error: &Error) -> Failure {
    match tls_words(error) {
        Some(_) if is_broken_off(error.details()) => {
            Failure::Unknown(ServerError::new("the connection was lost in the TLS handshake"))
        }
        Some(words) => with_advice(
            Failure::Refused(ServerError::new(format!("TLS: {words}"))),
            tls_advice,
        ),
        None => classify(error),
    }
}

/// Says which databases there are, if the server does not have the one that the URL names.
pub(super) fn of_a_database(failure: Failure, database: Option<u8>) -> Failure {
    with_advice(failure, |words| {
        let is_missing = [
            "DB index is out of range",
            "SELECT is not allowed in cluster mode",
        ]
        .iter()
        .any(|part| words.contains(part));
        let number = database.filter(|_| is_missing)?;
        Some(format!(
            "database {number}: must be less than the number of databases, which the server's setting \
             `databases` says, and in a cluster `cluster-databases` from Valkey 9.0 on; other clusters have \
             database 0 alone"
        ))
    })
}

/// What to do about an error of a TLS library.
fn tls_advice(words: &str) -> Option<&'static str> {
    let known = [
        // A certificate that plain `openssl req -x509` makes is that of an authority.
        (
            "CaUsedAsEndEntity",
            "the server shows the certificate of an authority. Have one made for the server, as by openssl \
             req -x509 -addext basicConstraints=critical,CA:FALSE",
        ),
        (
            "UnknownIssuer",
            "no known authority has signed the certificate of the server: name the one that has by \
             Tls::ca_certificates",
        ),
        (
            "NotValidForName",
            "the certificate of the server is for other names than the one that the URL, or its cluster, \
             gives it",
        ),
        (
            "certificate verify failed",
            "the certificate of the server is of no known authority, or for another name: see \
             Tls::ca_certificates",
        ),
    ];
    let found = known.iter().find(|(part, _)| words.contains(part));
    found.map(|(_, advice)| *advice)
}

/// The message of the TLS library, if TLS failed. On an open connection, the library reports an I/O error
/// that contains its own error.
fn tls_words(error: &Error) -> Option<&str> {
    let details = error.details();
    let of_openssl = || Some(details.split_once("reason: \"")?.1.split_once('"')?.0);
    let of_rustls = || {
        let words = details.strip_prefix("Custom { kind: InvalidData, error: ")?;
        Some(words.trim_end_matches(" }"))
    };
    match error.kind() {
        #[cfg(any(feature = "rustls", feature = "native-tls"))]
        ErrorKind::Tls => Some(of_openssl().unwrap_or(details)),
        ErrorKind::IO => of_openssl().or_else(of_rustls),
        _ => None,
    }
}

/// Whether the error of OpenSSL reports the end of the connection, and of no fault that either side found.
/// The code 5 is `SSL_ERROR_SYSCALL`.
fn is_broken_off(details: &str) -> bool {
    [
        "code: ErrorCode(5)",
        "cause: None",
        "cause: Some(Io(",
        "unexpected eof",
    ]
    .iter()
    .any(|words| details.contains(words))
}

/// Whether a server of a cluster refused to serve a slot.
pub(super) fn is_of_a_slot_unserved(failure: &Failure) -> bool {
    matches!(failure, Failure::NotExecuted(error) if error.to_string().starts_with("CLUSTERDOWN "))
}

/// Whether a server of a cluster names another server for the slot.
pub(super) fn is_redirection(failure: &Failure) -> bool {
    let is_one = |said: &str| matches!(code_of(said), Some("MOVED" | "ASK"));
    matches!(failure, Failure::NotExecuted(error) if is_one(&error.to_string()))
}

/// Converts the failure of a call that was not sent because of `error`. Such a call was never executed.
pub(crate) fn not_sent(error: Failure) -> Failure {
    match error {
        Failure::Unknown(error) => Failure::NotExecuted(error),
        failure => failure,
    }
}

/// The words of a failure, for people.
pub(super) fn words(failure: Failure) -> ServerError {
    match failure {
        Failure::Unknown(error) | Failure::NotExecuted(error) | Failure::Refused(error) => error,
        Failure::GivenUp | Failure::Closed => ServerError::new("the connection is over"),
    }
}

/// A password that is wrong now may have been replaced by another one, which the provider knows of.
pub(super) fn of_a_rotation(failure: Failure) -> Failure {
    match failure {
        Failure::Refused(error) if error.to_string().contains("WRONGPASS") => Failure::NotExecuted(error),
        failure => failure,
    }
}

/// Puts the address of the server in front of the failure.
pub(super) fn with_server(server: &str, failure: Failure) -> Failure {
    let named = |error: ServerError| ServerError::new(format!("{server}: {error}"));
    match failure {
        Failure::Unknown(error) => Failure::Unknown(named(error)),
        Failure::NotExecuted(error) => Failure::NotExecuted(named(error)),
        Failure::Refused(error) => Failure::Refused(named(error)),
        failure @ (Failure::GivenUp | Failure::Closed) => failure,
    }
}

/// Adds to a refusal what helps against it, if that is known.
pub(super) fn with_advice<A: Display>(failure: Failure, advice: impl FnOnce(&str) -> Option<A>) -> Failure {
    let Failure::Refused(error) = failure else {
        return failure;
    };
    let words = error.to_string();
    Failure::Refused(match advice(&words) {
        Some(advice) => ServerError::new(format!("{words} ({advice})")),
        None => error,
    })
}

/// The code at the start of the server's reply. Returns `None` if the error is not from a server.
pub(super) fn code(error: &Error) -> Option<&str> {
    (*error.kind() != ErrorKind::IO).then(|| code_of(error.details()))?
}

/// The code at the start of an error.
pub(super) fn code_of(said: &str) -> Option<&str> {
    let first = said.split_whitespace().next()?;
    let is_code = first.bytes().all(|byte| byte.is_ascii_uppercase());
    is_code.then(|| code_within(said).unwrap_or(first))
}

/// Redis before 7.0 wraps the error of a command inside a script: `ERR Error running script (call to f_…):
/// @user_script:1: @user_script: 1: -OOM command not allowed …`
fn code_within(text: &str) -> Option<&str> {
    let (_, said) = text
        .strip_prefix("ERR Error running script")?
        .split_once("@user_script")?;
    said.split_whitespace()
        .map(|word| word.trim_start_matches('-'))
        .find(|word| NOT_EXECUTED.contains(word))
}

/// A message for people: the server's words, or fred's if they are clear enough.
pub(super) fn message(error: &Error) -> ServerError {
    let details = error.details();
    let message = || {
        details
            .split_once("message: \"")?
            .1
            .split_once('"')
            .map(|(message, _)| message)
    };
    ServerError::new(match error.kind() {
        _ if code(error).is_some() => details,
        ErrorKind::Timeout => "no reply in time",
        ErrorKind::Canceled | ErrorKind::Unknown => "the connection was lost before the reply",
        ErrorKind::IO => message().unwrap_or(details),
        _ => details,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted(text: &'static str) -> Failure {
        classify(&Error::new(ErrorKind::Unknown, text))
    }

    #[test]
    fn temporary_errors_count_as_not_executed() {
        for text in [
            "OOM command not allowed when used memory > 'maxmemory'. script: ff96, on @user_script:1.",
            "ERR Error running script (call to f_ff96): @user_script:1: @user_script: 1: -OOM command not allowed",
            "ERR Error running script (call to f_ff96): @user_script:1: @user_script: 1: -READONLY You can't write",
            "BUSY Redis is busy running a script.",
            "LOADING Redis is loading the dataset in memory",
            "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
            "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
            "NOREPLICAS Not enough good replicas to write.",
            "NOSCRIPT No matching script. Please use EVAL.",
            "MOVED 3999 127.0.0.1:6381",
            "ASK 3999 127.0.0.1:6381",
            "CLUSTERDOWN The cluster is down",
            "TRYAGAIN Multiple keys request during rehashing of slot",
            "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)",
            "ERR max number of clients reached",
            "ERR WAIT cannot be used with replica instances. Please also note that since Redis 4.0 writes are not",
            "ERR Script attempted to access a non local key in a cluster node script: ff96, on @user_script:1.",
        ] {
            assert!(matches!(sorted(text), Failure::NotExecuted(_)), "{text}");
        }
    }

    #[test]
    fn permanent_errors_count_as_refused() {
        for text in [
            "NOPERM this user has no permissions to run the 'evalsha' command",
            "NOAUTH Authentication required.",
            "WRONGTYPE Operation against a key holding the wrong kind of value script: 9cd9",
            "ERR Error running script (call to f_9cd9): @user_script:1: WRONGTYPE Operation against a key",
            "ERR The user executing the script can't run this command or subcommand script: ff96",
        ] {
            assert!(matches!(sorted(text), Failure::Refused(_)), "{text}");
        }
    }

    #[test]
    fn errors_without_a_server_reply_are_unknown() {
        for text in [
            "Connection closed.",
            "RequestId timed out.",
            "Failed to route command.",
            "",
        ] {
            assert!(matches!(sorted(text), Failure::Unknown(_)), "{text}");
        }
        let refused = Error::new(
            ErrorKind::IO,
            "Os { code: 111, kind: ConnectionRefused, message: \"Connection refused\" }",
        );
        let Failure::Unknown(error) = classify(&refused) else {
            panic!("the outcome is not unknown")
        };
        assert_eq!(error.to_string(), "Connection refused");
    }

    #[cfg(any(feature = "rustls", feature = "native-tls"))]
    #[test]
    fn a_tls_handshake_that_breaks_off_is_no_refusal() {
        let openssl =
            |error: &str| format!("Ssl(Error {{ {error} }}, X509VerifyResult {{ code: 0, error: \"ok\" }})");
        let of_library = |code: u8, reason: &str| {
            format!(
                "code: ErrorCode({code}), cause: Some(Ssl(ErrorStack([Error {{ code: 1, library: \"SSL routines\", \
                 function: \"ssl3_read_n\", reason: \"{reason}\", file: \"record.c\", line: 1 }}])))"
            )
        };
        let reset = "Os { code: 104, kind: ConnectionReset, message: \"Connection reset by peer\" }";
        let eof = of_library(1, "unexpected eof while reading");
        for (kind, details) in [
            (ErrorKind::Tls, openssl("code: ErrorCode(5), cause: None")),
            (ErrorKind::Tls, openssl("code: ErrorCode(6), cause: None")),
            (
                ErrorKind::Tls,
                openssl(&format!("code: ErrorCode(5), cause: Some(Io({reset}))")),
            ),
            (ErrorKind::Tls, openssl(&of_library(5, "system lib"))),
            (ErrorKind::Tls, openssl(&eof)),
            (
                ErrorKind::IO,
                format!("Custom {{ kind: Other, error: Error {{ {eof} }} }}"),
            ),
            (
                ErrorKind::IO,
                "Custom { kind: UnexpectedEof, error: \"tls handshake eof\" }".to_owned(),
            ),
            (ErrorKind::IO, reset.to_owned()),
        ] {
            let failure = classify_connecting(&Error::new(kind, details.clone()));
            assert!(matches!(failure, Failure::Unknown(_)), "{details}: {failure:?}");
        }
        for (kind, details) in [
            (
                ErrorKind::Tls,
                openssl(&of_library(1, "certificate verify failed")),
            ),
            (ErrorKind::Tls, openssl(&of_library(1, "wrong version number"))),
            (
                ErrorKind::IO,
                format!(
                    "Custom {{ kind: Other, error: Error {{ {} }} }}",
                    of_library(1, "tlsv13 alert certificate required")
                ),
            ),
            (
                ErrorKind::IO,
                "Custom { kind: InvalidData, error: InvalidCertificate(UnknownIssuer) }".to_owned(),
            ),
        ] {
            let failure = classify_connecting(&Error::new(kind, details.clone()));
            assert!(matches!(failure, Failure::Refused(_)), "{details}: {failure:?}");
        }
    }
}
