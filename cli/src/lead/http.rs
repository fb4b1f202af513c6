//! What `fairlock lead --http` serves: who leads, whether the server answers, and metrics.

use std::convert::Infallible;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use fairlock::{HoldToken, Holder, LockManager};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use serde::Serialize;
use socket2::SockRef;
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::{Semaphore, watch};
use tokio::time::sleep;

use crate::connection::Place;
use crate::exit::{Failure, IO};
use crate::report::Report;

/// An answer that takes longer than this leaves it unknown who leads: the lease may be over.
const LATE: Duration = Duration::from_secs(3);
/// A client that sends nothing for so long is cut off.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long no client is taken if that has failed.
const PAUSE: Duration = Duration::from_secs(1);
/// How many clients are answered at a time. The others wait. Each takes a file descriptor, and the server and
/// CMD need some too.
const MOST_CLIENTS: usize = 64;
/// How many connections the system keeps for later.
const BACKLOG: u32 = 1024;
const TEXT: &str = "text/plain; version=0.0.4";
/// The buckets of all histograms, in seconds: those that docs/metrics.md recommends.
const BUCKETS: [f64; 16] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0,
];

/// What the requests are about.
pub(super) struct Served {
    name: String,
    /// The last lead of this process.
    lead: watch::Receiver<Option<HoldToken>>,
}

/// What the last answer was, or why there was none.
type Seen = Result<Option<Holder>, String>;

#[derive(Serialize)]
struct Leader<'a> {
    name: &'a str,
    leading: bool,
    fence: Option<u64>,
    leader: Option<&'a Holder>,
}

impl Served {
    pub(super) fn new(name: &str, lead: watch::Receiver<Option<HoldToken>>) -> Served {
        Served {
            name: name.to_owned(),
            lead,
        }
    }

    /// The fence under which this process leads. By the clock, since a process that was stopped for longer
    /// than its lease may answer before it is told of the loss.
    fn fence(&self) -> Option<u64> {
        let lead = self.lead.borrow();
        let lead = lead.as_ref().filter(|lead| lead.check().is_ok())?;
        Some(lead.fence().get())
    }
}

/// Listens at the address, and answers for as long as this process lives. The server of the locks is asked by
/// a client of its own.
pub(super) async fn serve(
    address: SocketAddr,
    served: Served,
    place: Place,
    report: &Report,
) -> Result<(), Failure> {
    let unusable = |error: &dyn std::fmt::Display| Failure::new(IO, format!("--http {address}: {error}"));
    let listener = listen(address).await.map_err(|error| unusable(&error))?;
    // Without buckets these would be summaries, and nothing on the dashboard or in the rules reads those.
    let metrics = PrometheusBuilder::new().set_buckets(&BUCKETS);
    let metrics = metrics.and_then(PrometheusBuilder::install_recorder);
    let metrics = metrics.map_err(|error| unusable(&error))?;
    if let Ok(address) = listener.local_addr() {
        report.words(&format!("serving HTTP at {address}"));
    }
    let (tell, seen) = watch::channel(Err("no server has answered yet".to_owned()));
    // A watch of the library would tell changes alone, but health is that of the last answer.
    let name = served.name.clone();
    let who_leads = move |locks: LockManager| {
        let leadership = locks.leadership(&name);
        async move { leadership.leader().await }
    };
    // Nobody has to hear it.
    tokio::spawn(place.ask_on(LATE, who_leads, move |seen| drop(tell.send(seen))));
    tokio::spawn(accept(listener, Arc::new(served), seen, metrics));
    Ok(())
}

/// `[::]` is every address of the machine, of IPv4 too.
async fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    if address.ip() != Ipv6Addr::UNSPECIFIED {
        return TcpListener::bind(address).await;
    }
    or_ipv4_alone(both_families(address), address.port()).await
}

/// Systems differ in whether an address of IPv6 stands for both families by default.
fn both_families(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = TcpSocket::new_v6()?;
    SockRef::from(&socket).set_only_v6(false)?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// IPv6 may be switched off, which systems tell by several errors. A port that is taken is none of them.
async fn or_ipv4_alone(listener: io::Result<TcpListener>, port: u16) -> io::Result<TcpListener> {
    match listener {
        Err(error) if error.kind() != ErrorKind::AddrInUse => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await
        }
        listener => listener,
    }
}

async fn accept(
    listener: TcpListener,
    served: Arc<Served>,
    seen: watch::Receiver<Seen>,
    metrics: PrometheusHandle,
) {
    let free = Arc::new(Semaphore::new(MOST_CLIENTS));
    loop {
        // The semaphore is never closed.
        let place = Arc::clone(&free).acquire_owned().await;
        let Ok((stream, _)) = listener.accept().await else {
            // As with too many open files: others may close theirs.
            sleep(PAUSE).await;
            continue;
        };
        let (served, seen, metrics) = (Arc::clone(&served), seen.clone(), metrics.clone());
        let service = service_fn(move |request: Request<Incoming>| {
            let response = respond(&request, &served, &seen.borrow(), &metrics);
            async move { Ok::<_, Infallible>(response) }
        });
        // One request each: renewals are done on the same thread, and must not wait for a flood of them.
        let connection = http1::Builder::new()
            .keep_alive(false)
            .timer(TokioTimer::new())
            .header_read_timeout(PATIENCE)
            .serve_connection(TokioIo::new(stream), service);
        // What a client does wrong concerns that client alone.
        tokio::spawn(async move {
            drop(connection.await);
            drop(place);
        });
    }
}

fn respond(
    request: &Request<Incoming>,
    served: &Served,
    seen: &Seen,
    metrics: &PrometheusHandle,
) -> Response<Full<Bytes>> {
    let (status, kind, body) = match request.uri().path() {
        _ if !matches!(*request.method(), Method::GET | Method::HEAD) => {
            let mut response = response(
                StatusCode::METHOD_NOT_ALLOWED,
                TEXT,
                "GET and HEAD alone\n".to_owned(),
            );
            response
                .headers_mut()
                .insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return response;
        }
        "/leader" => {
            let fence = served.fence();
            let leader = Leader {
                name: &served.name,
                leading: fence.is_some(),
                fence,
                leader: seen.as_ref().ok().and_then(Option::as_ref),
            };
            let body = serde_json::to_string(&leader).unwrap_or_default() + "\n";
            (StatusCode::OK, "application/json", body)
        }
        "/healthz" => match seen {
            Ok(_) => (StatusCode::OK, TEXT, "ok\n".to_owned()),
            Err(error) => (StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("{error}\n")),
        },
        "/metrics" => {
            metrics.run_upkeep();
            (StatusCode::OK, TEXT, metrics.render())
        }
        _ => (
            StatusCode::NOT_FOUND,
            TEXT,
            "/leader, /healthz and /metrics alone\n".to_owned(),
        ),
    };
    response(status, kind, body)
}

fn response(status: StatusCode, kind: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static(kind);
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_address_is_that_of_ipv4_where_ipv6_is_off() {
        let off = io::Error::from_raw_os_error(nix::errno::Errno::EAFNOSUPPORT as i32);
        let listener = or_ipv4_alone(Err(off), 0).await.unwrap();
        let address = listener.local_addr().unwrap();
        assert_eq!(address.ip(), Ipv4Addr::UNSPECIFIED);
        let taken = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).await.unwrap();
        let port = taken.local_addr().unwrap().port();
        let every = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
        assert_eq!(listen(every).await.unwrap_err().kind(), ErrorKind::AddrInUse);
    }
}
