//! The guards of credentials that change, in the order of the files.

use super::{Edit, edit};

const CONNECTOR: &str = "src/servers/redis/connector.rs";
const CREDENTIALS: &str = "src/servers/redis/credentials.rs";
const FAILURE: &str = "src/servers/redis/failure.rs";
const OF_THE_USER: &str = "src/types/credentials.rs";
const SUPERVISOR: &str = "src/servers/redis/supervisor.rs";

const ROTATING: &[&str] = &["--test servers credentials::"];

#[rustfmt::skip]
pub(super) const EDITS: &[Edit] = &[
    edit("credentials are never shown", OF_THE_USER, ".field(\"lifetime\", &self.lifetime)", ".field(\"lifetime\", &self.password)",
        &["--test face secrets::"]),
    edit("credentials have one source", CONNECTOR, "if login.is_some() && is_in_url {", "if false {", ROTATING),
    edit("an open connection knows when its credentials expire", CONNECTOR,
        "Ok(connection) => Ok(connection.renewed_by(renewal)),", "Ok(connection) => { drop(renewal); Ok(connection) }", ROTATING),
    edit("a provider that panics ends no task", CREDENTIALS, "AssertUnwindSafe(async { self.provider.ask(server).await }).catch_unwind();",
        "async { Ok::<_, ()>(self.provider.ask(server).await) };", ROTATING),
    edit("a provider that hangs is not waited for without end", CREDENTIALS, "timeout(self.patience, asked)", "timeout(Duration::MAX, asked)", ROTATING),
    edit("a lifetime is never so short that the provider is asked without a pause", CREDENTIALS,
        "lifetime.clamp(SHORTEST_LIFETIME, LONGEST_LIFETIME)", "lifetime.min(LONGEST_LIFETIME)", &["--lib credentials"]),
    edit("a part of the lifetime is left for failures", CREDENTIALS, "lifetime / 3 * 2 - ", "lifetime / 8 * 9 - ", &["--lib credentials"]),
    edit("a lifetime may be endless", CREDENTIALS,
        "lifetime.clamp(SHORTEST_LIFETIME, LONGEST_LIFETIME)", "lifetime.max(SHORTEST_LIFETIME)", &["--lib credentials"]),
    edit("a renewal that fails is repeated", CREDENTIALS, "backoff.pause().await;", "break None;", ROTATING).within("keep_up"),
    edit("a wrong password may be right later", FAILURE, "error.to_string().contains(\"WRONGPASS\")", "error.to_string().is_empty()", ROTATING),
    edit("a connection authenticates again", SUPERVISOR, "never = &mut authenticated => match never {},", "never = &mut authenticated, if false => match never {},", ROTATING),
];
