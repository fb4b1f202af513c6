//! Tests of the rights that a user needs.

use super::calls::acquire_and_release;
use super::quorum::{acquire, durable, opened, suits_a_quorum};
use super::*;
use crate::protocol::Failure;

/// A server, and the URL for a user with no more than the rights that are needed.
async fn with_the_least_rights() -> (Server, String) {
    let server = Server::start().await;
    // The user also needs a right to each command that the scripts call: inside Lua, the caller's rights
    // apply.
    let texts = script::ALL
        .iter()
        .flat_map(|script| script.text().split("call('").skip(1));
    let called: Vec<_> = texts
        .filter_map(|rest| {
            rest.split_once('\'')
                .map(|(command, _)| format!("+{}", command.to_lowercase()))
        })
        // Rights to subcommands are in the list below. Only clusters use SPUBLISH, and servers before 7.0 do
        // not know it.
        .filter(|right| right != "+pubsub" && right != "+spublish")
        .collect();
    let reply = server.tell(&format!(
        "ACL SETUSER u on >p resetkeys ~fairlock:* resetchannels &fairlock:* -@all +evalsha +script|load +auth +ping \
         +info +client|id +subscribe +unsubscribe +pubsub|numsub {}",
        called.join(" ")
    ));
    assert_eq!(reply, "OK");
    let url = format!("redis://u:p@127.0.0.1:{}/0", server.port());
    (server, url)
}

#[tokio::test]
async fn the_least_rights_suffice() {
    let (_server, url) = with_the_least_rights().await;
    let (store, _recorder) = store(&url).await;
    acquire_and_release(&Store::Server(store)).await;
}

#[tokio::test]
async fn the_least_rights_suffice_in_a_quorum_which_needs_info_too() {
    let (server, url) = with_the_least_rights().await;
    if !suits_a_quorum(&server) {
        return;
    }
    let client = opened(durable(BOUND), &url);
    acquire_and_release(&client.0).await;
    server.tell("ACL SETUSER u -info");
    server.tell("SCRIPT FLUSH");
    let refused = acquire(&client, "another").await;
    assert!(
        matches!(&refused, Err(Failure::Refused(error)) if error.to_string().contains("'info'")),
        "{refused:?}"
    );
}
