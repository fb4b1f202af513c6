//! Mutual exclusion, and which callers may release a lock.

use std::time::Duration;

use fairlock::{Error, HoldEnd, LockManager};
use fairlock_testkit::{History, Process, Resp};
use tokio::time::{Instant, sleep, timeout};

use crate::backend::{
    Backend, in_a_quorum, local_handoffs_in_a_quorum, on_each_backend, on_each_backend_in_parallel,
    with_local_handoffs,
};

on_each_backend! {
    held_lock_refuses_a_try_at_once_and_reports_its_ttl,
    two_names_do_not_exclude_each_other,
    two_prefixes_do_not_exclude_each_other,
    a_hash_tag_is_a_part_of_the_name,
    a_lock_is_free_after_its_release,
    a_release_after_another_took_over_says_taken,
    a_release_after_the_lease_ran_out_says_expired,
    a_lock_taken_by_force_is_neither_renewed_nor_released_by_its_former_holder,
    an_overlong_hold_does_not_shorten_the_next_one,
}

with_local_handoffs! {
    held_lock_refuses_a_try_at_once_and_reports_its_ttl,
    two_names_do_not_exclude_each_other,
    two_prefixes_do_not_exclude_each_other,
    a_hash_tag_is_a_part_of_the_name,
    a_lock_is_free_after_its_release,
    a_release_after_another_took_over_says_taken,
    a_release_after_the_lease_ran_out_says_expired,
    a_lock_taken_by_force_is_neither_renewed_nor_released_by_its_former_holder,
    an_overlong_hold_does_not_shorten_the_next_one,
}

in_a_quorum! {
    held_lock_refuses_a_try_at_once_and_reports_its_ttl,
    two_names_do_not_exclude_each_other,
    two_prefixes_do_not_exclude_each_other,
    a_hash_tag_is_a_part_of_the_name,
    a_lock_is_free_after_its_release,
    a_release_after_the_lease_ran_out_says_expired,
    a_lock_taken_by_force_is_neither_renewed_nor_released_by_its_former_holder,
    an_overlong_hold_does_not_shorten_the_next_one,
}

local_handoffs_in_a_quorum! {
    held_lock_refuses_a_try_at_once_and_reports_its_ttl,
    two_names_do_not_exclude_each_other,
    two_prefixes_do_not_exclude_each_other,
    a_hash_tag_is_a_part_of_the_name,
    a_lock_is_free_after_its_release,
    a_release_after_the_lease_ran_out_says_expired,
    a_lock_taken_by_force_is_neither_renewed_nor_released_by_its_former_holder,
    an_overlong_hold_does_not_shorten_the_next_one,
}

on_each_backend_in_parallel! {
    holds_of_many_clients_do_not_overlap,
    holds_of_many_tasks_of_one_client_do_not_overlap,
}

async fn held_lock_refuses_a_try_at_once_and_reports_its_ttl(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let lease = Duration::from_secs(10);
    let guard = here.lock("a").lease(lease).acquire().await.unwrap();
    let start = Instant::now();
    let error = there.lock("a").try_acquire().await.unwrap_err();
    let Error::Busy { ttl, waiting, .. } = error else {
        panic!("two holders at once, or {error}");
    };
    assert!(start.elapsed() < backend.slack());
    assert!(ttl <= lease && ttl > backend.unrenewed(lease) / 2, "{ttl:?}");
    assert_eq!(waiting, 0);
    assert!(error.is_transient());
    assert!(matches!(
        there.lock("a").try_acquire().await,
        Err(Error::Busy { .. })
    ));
    guard.release().await.unwrap();
}

async fn two_names_do_not_exclude_each_other(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let first = here.lock("a").acquire().await.unwrap();
    let second = there.lock("b").try_acquire().await.unwrap();
    assert_eq!((first.name(), second.name()), ("a", "b"));
    first.release().await.unwrap();
    second.release().await.unwrap();
}

async fn two_prefixes_do_not_exclude_each_other(backend: Backend) {
    let here = backend.client().await;
    let prefix = format!("{}-other", backend.prefix());
    let there = backend.client_with(|settings| settings.prefix(prefix)).await;
    let _first = here.lock("a").acquire().await.unwrap();
    assert!(there.lock("a").try_acquire().await.is_ok());
}

async fn a_hash_tag_is_a_part_of_the_name(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let _cart = here.lock("{user:7}:cart").acquire().await.unwrap();
    let tried = there.lock("{user:7}:cart").try_acquire().await;
    assert!(matches!(tried, Err(Error::Busy { .. })));
    for other in ["{user:7}:wishes", "user:7", "{user:7}:cart:"] {
        assert!(there.lock(other).try_acquire().await.is_ok());
    }
}

async fn a_lock_is_free_after_its_release(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let lock = there.lock("a");
    let mut last = None;
    for _ in 0..3 {
        let guard = here.lock("a").acquire().await.unwrap();
        let fence = guard.fence();
        assert!(Some(fence) > last, "fences increase");
        guard.release().await.unwrap();
        assert_eq!(lock.status().await.unwrap().holder, None);
        // A fence that has been released cannot be released by force.
        assert!(!lock.force_release(fence).await.unwrap());
        last = Some(fence);
    }
}

async fn a_release_after_another_took_over_says_taken(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let old = here
        .lock("a")
        .lease(Duration::from_millis(300))
        .auto_renew(false)
        .acquire()
        .await
        .unwrap();
    let new = there.lock("a").acquire().await.unwrap();
    assert!(old.is_lost());
    assert!(matches!(old.renew().await, Err(Error::Lost(_))));
    let before = there.lock("a").status().await.unwrap().holder.unwrap();
    assert_eq!(before.fence, new.fence());

    let Err(Error::Lost(lost)) = old.release().await else {
        panic!("released what another holds");
    };
    // As its check said before.
    assert_eq!((&*lost.name, lost.reason), ("a", HoldEnd::Expired));

    let after = there.lock("a").status().await.unwrap().holder.unwrap();
    assert_eq!(
        (after.fence, &after.owner, after.holds),
        (new.fence(), new.owner(), 1)
    );
    assert!(after.ttl > Duration::from_secs(15), "{after:?}");
    new.release().await.unwrap();
}

async fn a_release_after_the_lease_ran_out_says_expired(backend: Backend) {
    let here = backend.client().await;
    let guard = here
        .lock("a")
        .lease(Duration::from_millis(200))
        .auto_renew(false)
        .acquire()
        .await
        .unwrap();
    sleep(Duration::from_millis(300)).await;
    let Err(Error::Lost(lost)) = guard.release().await else {
        panic!("held for longer than its lease");
    };
    assert_eq!(lost.reason, HoldEnd::Expired);
}

async fn a_lock_taken_by_force_is_neither_renewed_nor_released_by_its_former_holder(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let renewing = here.lock("a").acquire().await.unwrap();
    let lock = there.lock("a");
    assert!(lock.force_release(renewing.fence()).await.unwrap());
    let releasing = there.lock("a").try_acquire().await.unwrap();
    assert!(!renewing.is_lost(), "the holder does not know yet");
    let Err(Error::Lost(lost)) = renewing.renew().await else {
        panic!("renewed what another holds");
    };
    assert_eq!(lost.reason, HoldEnd::Taken);
    assert!(renewing.is_lost());
    drop(renewing);

    assert!(here.lock("a").force_release(releasing.fence()).await.unwrap());
    let last = here.lock("a").try_acquire().await.unwrap();
    let Err(Error::Lost(lost)) = releasing.release().await else {
        panic!("released what another holds");
    };
    assert_eq!(lost.reason, HoldEnd::Taken);
    assert_eq!(
        lock.status().await.unwrap().holder.unwrap().fence,
        last.fence(),
        "the last holder was left alone"
    );
}

async fn an_overlong_hold_does_not_shorten_the_next_one(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let short = Duration::from_millis(200);
    let late = here
        .lock("a")
        .lease(short)
        .auto_renew(false)
        .acquire()
        .await
        .unwrap();
    let guard = there.lock("a").acquire().await.unwrap();
    drop(late);
    sleep(short * 2).await;
    assert!(guard.check().is_ok());
    assert!(matches!(
        here.lock("a").try_acquire().await,
        Err(Error::Busy { .. })
    ));
    guard.release().await.unwrap();
}

async fn holds_of_many_clients_do_not_overlap(backend: Backend) {
    let clients = backend.clients(6).await;
    contend(clients, 30).await;
}

async fn holds_of_many_tasks_of_one_client_do_not_overlap(backend: Backend) {
    let client = backend.client().await;
    contend(vec![client; 6], 30).await;
}

/// Each client takes the lock `rounds` times, alternating between waiting and not waiting.
async fn contend(clients: Vec<LockManager>, rounds: usize) {
    let history = History::default();
    let expected = clients.len() * rounds;
    let mut tasks = tokio::task::JoinSet::new();
    for (number, client) in clients.into_iter().enumerate() {
        let history = history.clone();
        tasks.spawn(async move {
            let lock = client.lock("a");
            for round in 0..rounds {
                let entry = history.asks(number);
                let guard = if round % 3 == 0 {
                    lock.try_acquire().await
                } else {
                    lock.acquire().await
                };
                let guard = match guard {
                    Err(Error::Busy { .. }) => lock.acquire().await.unwrap(),
                    guard => guard.unwrap(),
                };
                entry.granted(guard.fence().get());
                if round % 2 == 0 {
                    tokio::task::yield_now().await;
                }
                entry.released();
                match round % 5 {
                    0 => drop(guard),
                    _ => guard.release().await.unwrap(),
                }
            }
        });
    }
    let all = async { while tasks.join_next().await.transpose().unwrap().is_some() {} };
    timeout(Duration::from_secs(30), all)
        .await
        .expect("all tasks finish");
    assert_eq!(history.grants().len(), expected);
    history.assert_no_overlap();
    history.assert_fences_increase();
}

mod on_a_real_server {
    use super::*;

    const PROCESSES: usize = 4;
    const ROUNDS: usize = 25;

    #[tokio::test]
    async fn no_update_of_many_processes_is_lost() {
        let backend = Backend::on_a_server().await;
        let server = backend.server().unwrap();
        let value = format!("{}:value", backend.prefix());
        let (url, port) = (server.url(), server.port().to_string());
        let args = [
            ("url", url.as_str()),
            ("port", &port),
            ("prefix", backend.prefix()),
            ("value", &value),
        ];
        let mut processes: Vec<Process> = (0..PROCESSES)
            .map(|_| Process::spawn("exclusion::on_a_real_server::updater", &args))
            .collect();
        for process in &mut processes {
            process.expect("ready").await;
        }
        for process in &mut processes {
            process.tell("go");
        }
        for process in &mut processes {
            process.ended().await;
        }
        let total = server.command(&["GET", &value]).await.int();
        assert_eq!(usize::try_from(total).unwrap(), PROCESSES * ROUNDS);
    }

    /// Reads the value, waits a little and writes the value plus one. Without a lock, updates get lost.
    #[tokio::test]
    #[ignore = "a role for other tests, run in its own process"]
    async fn updater() {
        let Some(mut role) = fairlock_testkit::role() else {
            return;
        };
        let builder = LockManager::builder().prefix(role.arg("prefix"));
        let locks = builder.connect(&role.arg("url")).await.unwrap();
        let port = u16::try_from(role.number("port")).unwrap();
        let mut client = fairlock_testkit::Client::connect(port).await.unwrap();
        let value = role.arg("value");
        role.say("ready");
        role.heard().await;
        for _ in 0..ROUNDS {
            let guard = locks.lock("value").acquire().await.unwrap();
            let read = client.command(&["GET", &value]).await.unwrap();
            let read = if read.is_nil() { 0 } else { read.int() };
            sleep(Duration::from_millis(1)).await;
            let written = client.command(&["SET", &value, &(read + 1).to_string()]).await;
            assert!(!written.unwrap().is_error());
            guard.release().await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_key_of_another_type_is_refused_and_left_alone() {
        let backend = Backend::on_a_server().await;
        let server = backend.server().unwrap();
        let client = backend.client().await;
        for (name, kind) in [("a", ""), ("b", "queue:")] {
            let foreign = format!("{}:{kind}{{{name}}}", backend.prefix());
            server.command(&["SET", &foreign, "mine"]).await;
            let refused = client.lock(name).acquire_timeout(Duration::from_secs(5)).await;
            let Err(Error::Refused(why)) = refused else {
                panic!("{name}: {refused:?}");
            };
            assert!(why.to_string().contains("WRONGTYPE"), "{why}");
            assert_eq!(client.stats().waiting, 0);
            let value = server.command(&["GET", &foreign]).await;
            assert_eq!(value, Resp::Text("mine".to_owned()));
        }
        let refused = client.lock("a").try_acquire().await;
        assert!(matches!(refused, Err(Error::Refused(_))), "{refused:?}");
        let refused = client.lock("a").status().await;
        assert!(matches!(refused, Err(Error::Refused(_))), "{refused:?}");
        // Other locks are not affected.
        client.lock("d").acquire().await.unwrap().release().await.unwrap();
    }
}
