//! Which servers of a quorum answer, and how fast.

use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::connection::Place;
use crate::spans::show;

/// How often a server is asked.
const LOOK: Duration = Duration::from_secs(1);
/// A server that takes longer does not answer.
const PATIENCE: Duration = Duration::from_secs(2);

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
        tokio::spawn(ask(server, tell));
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

/// Asks again and again, until nobody wants to know.
async fn ask(server: Place, tell: watch::Sender<Option<Answer>>) {
    while !tell.is_closed() {
        match server.connect().await {
            Ok(locks) => {
                while !tell.is_closed() {
                    let asked = Instant::now();
                    let answer = match timeout(PATIENCE, locks.ping()).await {
                        Ok(answer) => answer
                            .map(|()| asked.elapsed())
                            .map_err(|error| error.to_string()),
                        Err(_) => Err(format!("no answer for {}", show(PATIENCE))),
                    };
                    tell.send_replace(Some(answer));
                    sleep(LOOK).await;
                }
            }
            Err(error) => {
                tell.send_replace(Some(Err(error.to_string())));
            }
        }
        sleep(LOOK).await;
    }
}
