//! Which servers of a quorum answer, and how fast.

use std::time::{Duration, Instant};

use fairlock::LockManager;
use tokio::sync::watch;

use crate::connection::Place;

/// A server that takes longer does not answer.
const LATE: Duration = Duration::from_secs(2);

/// The last answer of a server: how long it took, or what came in its place.
type Answer = Result<Duration, String>;

/// One server of a quorum.
pub(super) struct Server {
    name: String,
    last: watch::Receiver<Option<Answer>>,
}

/// A line for the screen.
pub(super) struct Line {
    pub(super) text: String,
    pub(super) is_trouble: bool,
}

/// The servers, which are asked from now on. None for a place that is no quorum: there the looks at the
/// locks tell as much.
pub(super) fn of(place: &Place) -> Vec<Server> {
    let servers = place.servers().into_iter().map(|server| {
        let (tell, last) = watch::channel(None);
        let name = server.urls_shown();
        let pinged = |locks: LockManager| async move {
            let asked = Instant::now();
            locks.ping().await.map(|()| asked.elapsed())
        };
        tokio::spawn(server.ask_on(LATE, pinged, move |answer| {
            tell.send_replace(Some(answer));
        }));
        Server { name, last }
    });
    servers.collect()
}

impl Server {
    pub(super) fn line(&self) -> Line {
        let last = self.last.borrow();
        let text = match &*last {
            None => "not asked yet".to_owned(),
            Some(Ok(took)) => format!("answers in {:.1}ms", 1e3 * took.as_secs_f64()),
            Some(Err(error)) => error.clone(),
        };
        Line {
            text: format!("{}: {text}", self.name),
            is_trouble: matches!(&*last, Some(Err(_))),
        }
    }
}
