//! The scripts of a connection, as its server knows them.

use std::ptr;
use std::sync::Arc;

use super::options::QuorumServer;
use crate::protocol::script::Script;
use crate::time::server_time::millis;

/// The scripts that the calls on a connection use. In a quorum, the text of each begins with one more line,
/// `-- quorum <longest lease in ms>`. So no client shares its scripts with clients that load them by another
/// rule.
#[derive(Debug, Default)]
pub(crate) struct ScriptSet {
    scripts: Vec<&'static Script>,
    /// The hashes of the scripts, in their order.
    shas: Vec<String>,
    /// The quorum's server that these scripts are for, if they are for one.
    pub(super) quorum: Option<QuorumServer>,
}

impl ScriptSet {
    pub(crate) fn new(scripts: &[&'static Script], quorum: Option<QuorumServer>) -> Arc<ScriptSet> {
        let shas = scripts
            .iter()
            .map(|script| fred::util::sha1_hash(&text(script, quorum)));
        Arc::new(ScriptSet {
            scripts: scripts.to_vec(),
            shas: shas.collect(),
            quorum,
        })
    }

    /// The texts that are sent.
    pub(crate) fn texts(&self) -> impl Iterator<Item = String> {
        self.scripts.iter().map(|script| text(script, self.quorum))
    }

    /// The hash by which the server knows a script of this set.
    pub(crate) fn sha(&self, script: &'static Script) -> &str {
        let position = self.scripts.iter().position(|own| ptr::eq(*own, script));
        let position = position.unwrap_or_else(|| unreachable!("a call of a script that is not loaded"));
        &self.shas[position]
    }
}

fn text(script: &Script, quorum: Option<QuorumServer>) -> String {
    match quorum {
        Some(server) => format!("-- quorum {}\n{}", millis(server.longest_lease), script.text()),
        None => script.text().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::time::Duration;

    use super::*;
    use crate::protocol::script::{ALL, for_server};

    fn set(longest_lease_ms: Option<u64>) -> Arc<ScriptSet> {
        let quorum = longest_lease_ms.map(|ms| QuorumServer {
            longest_lease: Duration::from_millis(ms),
            durable: false,
        });
        ScriptSet::new(for_server(quorum.is_some()), quorum)
    }

    #[test]
    fn scripts_of_a_quorum_begin_with_a_line_of_their_own() {
        for (text, script) in set(Some(1_500)).texts().zip(ALL) {
            assert_eq!(text, format!("-- quorum 1500\n{}", script.text()));
        }
        for (text, script) in set(None).texts().zip(ALL) {
            assert_eq!(text, script.text());
        }
    }

    /// Clients of all versions share the scripts that a server has loaded. A change must be meant.
    #[test]
    fn the_scripts_of_locks_stay_as_they_are_sent() {
        let hashes = for_server(true)
            .iter()
            .map(|script| format!("{} {}", script.name, fred::util::sha1_hash(script.text())));
        let sent = [
            "acquire 6a87a7eebacb57e87ade8fb2ab3469e19b69ef3f",
            "release d0d86590a544b490bed47f90c8a6933b778e72ce",
            "withdraw 753c4a678e3546f873ada75130f0c59c76581f9c",
            "renew a452ce2f0702e50c8473858f9b52e1344fb8b4ed",
            "look d5894c4efbe8b65ca9f5f86a849a9ea60dbe3e95",
            "inspect ae73d0cc59924469d4a600e88ea227f1ddea90d1",
            "label a1664e02c305a15b97dcd805a2a354eaf826874c",
            "spin_acquire 61ca29d8da5a72a85f40f5c865e3ced83ad844d1",
            "spin_release 7d418e2d9ddb0c12ea23c4cbe92e5e542beaed05",
        ];
        assert_eq!(hashes.collect::<Vec<_>>(), sent);
    }

    #[test]
    fn clients_with_another_longest_lease_share_no_script() {
        let mut known = HashSet::new();
        for set in [None, Some(1_000), Some(1_001), Some(60_000)].map(set) {
            for (text, script) in set.texts().zip(ALL) {
                let sha = set.sha(script).to_owned();
                assert_eq!(sha, fred::util::sha1_hash(&text), "{}", script.name);
                assert!(known.insert(sha), "{}", script.name);
            }
        }
    }
}
