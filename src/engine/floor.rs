//! Floors: the least fences of grants in a quorum, and the clocks of its servers, which they follow.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::engine::server_clocks::ServerClocks;
use crate::protocol::{RESERVED, ServerId};
use crate::time::clock::LocalTime;
use crate::time::server_time::ServerTime;
use crate::types::error::Result;
use crate::types::fence::Fence;

/// How long the first calls of a ballot have the same floor. By then they are made.
const FRESH: Duration = Duration::from_millis(10);

/// How far a server's clock may be ahead of the median and still count for fences. It is far less than what
/// servers refuse, so that the clocks of the others may be behind the median by as much.
const FAR_AHEAD_US: u64 = 12 * 60 * 60 * 1_000_000;

/// The floors of all requests of a ballot.
#[derive(Clone, Debug)]
pub(crate) struct Floor {
    /// The least fence of a grant to this request. It is equal on all servers, so they grant one fence.
    own: Fence,
    /// Until when that one is fresh, and the clocks for a later one. `None` for a hold.
    clocks: Option<(LocalTime, Arc<QuorumClocks>)>,
    /// The least fence that the end of this request grants to the next one.
    next: Arc<NextFloor>,
}

/// The floor of the next holder, which all requests of a ballot share: all servers get the same one, so they
/// grant one fence. It is larger than the fences of all turns that the hold of the ballot has used, or may
/// use yet.
#[derive(Debug, Default)]
pub(crate) struct NextFloor {
    /// Set when the hold begins: larger than those of all turns that it can have.
    while_held: OnceLock<Fence>,
    /// Set when the hold ends.
    ended: OnceLock<Fence>,
}

impl NextFloor {
    /// The ballot is a hold from now on, under this fence.
    pub(crate) fn begin_hold(&self, fence: Fence) {
        self.while_held.get_or_init(|| fence.plus(RESERVED + 1));
    }

    /// The hold ends, unless it had ended before.
    pub(crate) fn end_hold(&self, next: impl FnOnce() -> Fence) {
        self.ended.get_or_init(next);
    }

    #[cfg(test)]
    pub(crate) fn ended(&self) -> Option<Fence> {
        self.ended.get().copied()
    }
}

impl Floor {
    /// The floors of a ballot that begins now.
    pub(crate) fn of_ballot(
        clocks: &Arc<QuorumClocks>,
        now: LocalTime,
        next: &Arc<NextFloor>,
    ) -> Result<Floor> {
        Ok(Floor {
            own: clocks.floor()?,
            clocks: Some((now.after(FRESH), Arc::clone(clocks))),
            next: Arc::clone(next),
        })
    }

    /// The ballot is a hold from now on, under this fence.
    pub(crate) fn begin_hold(&mut self, fence: Fence) {
        (self.own, self.clocks) = (fence, None);
    }

    /// The fence of the hold. Of a ballot that is none yet, the floor of its first calls.
    pub(crate) fn own(&self) -> Fence {
        self.own
    }

    /// The least fence of a grant to the request by a call that is made now. Servers that have lost their
    /// data while the caller waited must not grant a fence from the time when it began to wait: there were
    /// holds under larger ones since.
    pub(in crate::engine) fn at(&self, now: LocalTime) -> Fence {
        match &self.clocks {
            Some((fresh_until, clocks)) if now > *fresh_until => {
                clocks.floor().map_or(self.own, |floor| floor.max(self.own))
            }
            _ => self.own,
        }
    }

    /// The least fence of a grant to the next holder by a call that is made now. A ballot that ends without a
    /// hold has used none.
    pub(in crate::engine) fn of_next(&self, now: LocalTime) -> Fence {
        match (self.next.ended.get(), self.next.while_held.get()) {
            (Some(next), _) => self.own.max(*next),
            (None, Some(after_turns)) => self.at(now).max(*after_turns),
            (None, None) => self.at(now),
        }
    }
}

/// What the clients of one quorum know of its servers' clocks. Each client has one server.
#[derive(Debug)]
pub(crate) struct QuorumClocks(Vec<Arc<ServerClocks>>);

impl QuorumClocks {
    pub(crate) fn new(servers: Vec<Arc<ServerClocks>>) -> QuorumClocks {
        QuorumClocks(servers)
    }

    /// The least fence of a grant: the latest of the servers' clocks, in µs. It is larger than the fences
    /// that a server has forgotten, as long as the clocks agree.
    ///
    /// A clock that is far ahead of the median does not count: servers refuse a floor that is more than a day
    /// ahead of theirs.
    pub(crate) fn floor(&self) -> Result<Fence> {
        Fence::try_from(self.latest_us())
    }

    /// The latest of the servers' times that fences follow.
    pub(crate) fn latest_time(&self) -> ServerTime {
        ServerTime::from_us(self.latest_us())
    }

    fn latest_us(&self) -> u64 {
        let times = self.times_us();
        let median = median(&times);
        let latest = times.into_iter().rfind(|time| *time <= median + FAR_AHEAD_US);
        latest.unwrap_or(median)
    }

    /// The median of the servers' times.
    pub(crate) fn median_time(&self) -> ServerTime {
        ServerTime::from_us(median(&self.times_us()))
    }

    /// The median of the servers' likely times, in µs. A minority of wrong clocks does not move it.
    pub(crate) fn median_us(&self) -> u64 {
        let likely = self.0.iter();
        let likely = likely.filter_map(|clocks| clocks.likely_us(ServerId::default()));
        let mut likely: Vec<_> = likely.collect();
        likely.sort_unstable();
        median(&likely)
    }

    /// The times of the servers now, in µs, as far as their clients know them, the earliest first. A server
    /// that has never answered has none.
    fn times_us(&self) -> Vec<u64> {
        let mut times: Vec<_> = (self.0.iter())
            .filter_map(|clocks| clocks.latest_us(ServerId::default()))
            .collect();
        times.sort_unstable();
        times
    }
}

/// The one in the middle of these, which are sorted, and of two the lower one. There is one at least: a
/// majority of the servers have answered before there is a client.
fn median<T: Copy>(sorted: &[T]) -> T {
    sorted[(sorted.len() - 1) / 2]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Answer, ConnectionId};
    use crate::time::clock::Clock;
    use crate::time::clock_offset::Sample;

    /// The clocks of servers that show these times, in ms, now.
    fn clocks(clock: Clock, times: &[u64]) -> Arc<QuorumClocks> {
        let servers = times.iter().map(|ms| clock_at(clock, *ms));
        Arc::new(QuorumClocks::new(servers.collect()))
    }

    fn clock_at(clock: Clock, ms: u64) -> Arc<ServerClocks> {
        let at = Sample {
            sent: clock.now(),
            received: clock.now(),
            now: ServerTime::from_ms(ms),
        };
        let first = Answer {
            on: ConnectionId::default(),
            at,
            reply: (),
        };
        Arc::new(ServerClocks::new(clock, Some(&first)))
    }

    fn fence(ms: u64) -> Fence {
        Fence::new(1000 * ms).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn floors_follow_the_latest_clock_and_are_fresh() {
        let clock = Clock::tokio();
        let next = Arc::<NextFloor>::default();
        let floor = Floor::of_ballot(&clocks(clock, &[5_000, 7_000, 6_000]), clock.now(), &next).unwrap();
        let floors = || (floor.at(clock.now()), floor.of_next(clock.now()));
        assert_eq!(floors(), (fence(7_000), fence(7_000)));
        tokio::time::sleep(FRESH).await;
        assert_eq!(
            floors(),
            (fence(7_000), fence(7_000)),
            "the first calls share one"
        );
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(floors(), (fence(8_010), fence(8_010)));
        next.begin_hold(fence(9_000));
        let after_turns = fence(9_000).plus(RESERVED + 1);
        assert_eq!(floors(), (fence(8_010), after_turns), "of what ends a vote");
        next.end_hold(|| fence(7_500));
        assert_eq!(floors(), (fence(8_010), fence(7_500)), "of what ends the hold");
    }

    /// Two requests have one floor only if they are made in one µs.
    #[tokio::test(start_paused = true)]
    async fn floors_are_in_microseconds() {
        let clock = Clock::tokio();
        let clocks = clocks(clock, &[5_000, 7_000, 6_000]);
        tokio::time::advance(Duration::from_micros(1)).await;
        assert_eq!(clocks.floor().unwrap(), fence(7_000).next());
    }

    #[tokio::test(start_paused = true)]
    async fn server_that_has_never_answered_has_no_clock() {
        let clock = Clock::tokio();
        let never_heard = Arc::new(ServerClocks::new(clock, None));
        let clocks = QuorumClocks::new(vec![clock_at(clock, 5_000), never_heard]);
        assert_eq!(clocks.floor().unwrap(), fence(5_000));
        assert!(clocks.median_us() > 1000 * 4_000);
    }

    #[tokio::test(start_paused = true)]
    async fn calls_for_the_votes_of_a_hold_have_its_fence() {
        let clock = Clock::tokio();
        let mut floor = Floor::of_ballot(&clocks(clock, &[5_000]), clock.now(), &Arc::default()).unwrap();
        floor.begin_hold(fence(6_000));
        tokio::time::sleep(Duration::from_secs(9)).await;
        assert_eq!((floor.own(), floor.at(clock.now())), (fence(6_000), fence(6_000)));
    }
}
