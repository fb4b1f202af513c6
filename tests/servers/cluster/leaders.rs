//! Leaders in a cluster, each on the master of its slot.

use std::time::Duration;

use fairlock_testkit::{Cluster, eventually};
use tokio::time::timeout;

use super::scene::clients;

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaders_on_all_masters_are_seen_and_followed() {
    let cluster = Cluster::start().await;
    let clients = clients(&cluster, 2).await;
    let (here, there) = (&clients[0], &clients[1]);
    for n in 0..6 {
        let (leading, following) = (
            here.leadership(format!("leader-{n}")),
            there.leadership(format!("leader-{n}")),
        );
        let mut watch = there.lock(following.name()).watch(SECOND / 10);
        assert!(watch.next().await.unwrap().unwrap().holder.is_none());
        let lead = leading.campaign().await.unwrap();
        let (term, next) = (lead.token(), tokio::spawn(following.campaign()));
        let seen = timeout(10 * SECOND, watch.next()).await.expect("a change");
        let seen = seen.unwrap().unwrap().holder;
        assert_eq!(seen.map(|leader| leader.fence), Some(lead.fence()));
        let lock = here.lock(leading.name());
        let queued = async || lock.status().await.unwrap().waiting == 1;
        eventually("the other one campaigns", 10 * SECOND, queued).await;
        lead.release().await.unwrap();
        let next = timeout(5 * SECOND, next)
            .await
            .expect("it leads")
            .unwrap()
            .unwrap();
        assert!(term.check().is_err() && next.fence() > term.fence());
        loop {
            // The label of a leader may be told later than its fence.
            let seen = timeout(10 * SECOND, watch.next()).await.expect("a change");
            let seen = seen.unwrap().unwrap().holder;
            if seen.is_some_and(|leader| leader.fence == next.fence()) {
                break;
            }
        }
    }
}
