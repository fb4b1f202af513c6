//! The locks as they were seen last, and what several looks tell about them.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use fairlock::{Kind, Listed};

use crate::report::in_use;

/// The hand-offs of a lock are counted over so many looks.
const LOOKS: usize = 10;
/// What is known of a lock that is not listed any more is kept for so long.
const KEPT: Duration = Duration::from_secs(30);

/// A lock at one look.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) kind: Kind,
    /// The holder's label, with a question mark for a client that is not known, or how much of the lock is in
    /// use. `None` if the lock is free.
    pub(super) holder: Option<String>,
    /// The longest time of a holder.
    pub(super) held_for: Option<Duration>,
    /// The largest fence of a holder.
    pub(super) fence: Option<u64>,
    pub(super) waiting: u64,
    pub(super) longest_wait: Option<Duration>,
    /// How often a larger fence was seen, per second. Several hand-offs between two looks count once, so
    /// there were at least so many. `None` after one look.
    pub(super) changes: Option<f64>,
}

impl Row {
    fn id(&self) -> (String, Kind) {
        (self.name.clone(), self.kind)
    }
}

impl From<Listed> for Row {
    fn from(listed: Listed) -> Row {
        let status = listed.status;
        let holders = status.holders.iter();
        let label = |label: Option<&str>| match (label.unwrap_or("?"), listed.kind) {
            (label, Kind::ReadWrite) => format!("a writer: {label}"),
            (label, _) => label.to_owned(),
        };
        let holder = status.holder.as_ref();
        let holder = holder.map(|holder| label(holder.label.as_deref()));
        Row {
            name: listed.name,
            kind: listed.kind,
            holder: in_use(listed.kind, &status).or(holder),
            held_for: holders.clone().map(|holder| holder.held_for).max(),
            fence: holders.map(|holder| holder.fence.get()).max(),
            waiting: status.waiting,
            longest_wait: status.longest_wait,
            changes: None,
        }
    }
}

/// What the rows are sorted by. The largest is first, but names are in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    Waiting,
    LongestWait,
    HeldFor,
    Changes,
    Name,
}

/// The looks at one lock.
#[derive(Default)]
struct History {
    fence: Option<u64>,
    /// When it was looked at, and whether a larger fence was seen than before.
    looks: VecDeque<(Instant, bool)>,
}

impl History {
    fn look(&mut self, now: Instant, fence: Option<u64>) -> Option<f64> {
        // Of several holders the last one may go first.
        let is_later = self.fence.is_some() && fence > self.fence;
        self.fence = fence.max(self.fence);
        self.looks.push_back((now, is_later));
        if self.looks.len() > LOOKS {
            self.looks.pop_front();
        }
        let (first, _) = *self.looks.front()?;
        let span = now.duration_since(first).as_secs_f64();
        // What the first look saw came about before it.
        let later = self
            .looks
            .iter()
            .skip(1)
            .filter(|(_, is_later)| *is_later)
            .count();
        (span > 0.0).then(|| f64::from(u32::try_from(later).unwrap_or(u32::MAX)) / span)
    }
}

pub(super) struct Board {
    rows: Vec<Row>,
    histories: HashMap<(String, Kind), History>,
    sort: Sort,
    /// How many rows are above the screen.
    offset: usize,
    /// How many rows the screen has.
    page: usize,
}

impl Board {
    pub(super) fn new() -> Board {
        Board {
            rows: Vec::new(),
            histories: HashMap::new(),
            sort: Sort::Waiting,
            offset: 0,
            page: 1,
        }
    }

    /// Takes what a look has found. A lock may be found twice.
    pub(super) fn update(&mut self, now: Instant, found: Vec<Row>) {
        let mut rows: HashMap<(String, Kind), Row> = HashMap::new();
        for row in found {
            rows.insert(row.id(), row);
        }
        self.rows = rows.into_values().collect();
        for row in &mut self.rows {
            let history = self.histories.entry(row.id()).or_default();
            row.changes = history.look(now, row.fence);
        }
        self.histories.retain(|_, history| {
            let last = history.looks.back();
            last.is_some_and(|(at, _)| now.duration_since(*at) < KEPT)
        });
        self.arrange();
    }

    pub(super) fn sort_by(&mut self, sort: Sort) {
        self.sort = sort;
        self.offset = 0;
        self.arrange();
    }

    /// Locks of equal rank are in the order of their names, so they keep their places.
    fn arrange(&mut self) {
        let ms = |span: Option<Duration>| span.map(|span| span.as_millis());
        self.rows.sort_by(|one, other| {
            let key = |row: &Row| match self.sort {
                Sort::Waiting => Some(u128::from(row.waiting)),
                Sort::LongestWait => ms(row.longest_wait),
                Sort::HeldFor => ms(row.held_for),
                Sort::Changes | Sort::Name => None,
            };
            let changes = |row: &Row| match self.sort {
                Sort::Changes => row.changes.unwrap_or(-1.0),
                _ => 0.0,
            };
            Reverse(key(one))
                .cmp(&Reverse(key(other)))
                .then_with(|| changes(other).total_cmp(&changes(one)))
                .then_with(|| (&one.name, one.kind).cmp(&(&other.name, other.kind)))
        });
        self.scroll(0);
    }

    /// Moves by so many rows, down if that is positive.
    pub(super) fn scroll(&mut self, by: isize) {
        let last = self.rows.len().saturating_sub(self.page);
        self.offset = self.offset.saturating_add_signed(by).min(last);
    }

    /// Moves by so many screens.
    pub(super) fn turn(&mut self, by: isize) {
        self.scroll(by.saturating_mul(isize::try_from(self.page).unwrap_or(isize::MAX)));
    }

    /// Tells how many rows fit, and returns those.
    pub(super) fn shown(&mut self, page: usize) -> &[Row] {
        self.page = page.max(1);
        self.scroll(0);
        let end = (self.offset + page).min(self.rows.len());
        &self.rows[self.offset.min(end)..end]
    }

    pub(super) fn sort(&self) -> Sort {
        self.sort
    }

    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    pub(super) fn waiting(&self) -> u64 {
        self.rows.iter().map(|row| row.waiting).sum()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use fairlock::{Fence, LockManager, MemoryStore};

    use super::*;

    pub(in crate::top) fn row(name: &str, fence: u64, waiting: u64) -> Row {
        Row {
            name: name.to_owned(),
            kind: Kind::Lock,
            holder: Some("web-7:4711".to_owned()),
            held_for: Some(Duration::from_secs(fence)),
            fence: Some(fence),
            waiting,
            longest_wait: (waiting > 0).then(|| Duration::from_secs(100 - waiting)),
            changes: None,
        }
    }

    fn names(board: &mut Board) -> Vec<String> {
        board.shown(100).iter().map(|row| row.name.clone()).collect()
    }

    #[test]
    fn rows_are_sorted_by_the_key_and_then_by_name() {
        let mut board = Board::new();
        let start = Instant::now();
        board.update(
            start,
            vec![row("b", 3, 5), row("a", 1, 5), row("d", 2, 0), row("c", 9, 7)],
        );
        assert_eq!(names(&mut board), ["c", "a", "b", "d"]);
        for (sort, expected) in [
            (Sort::Name, ["a", "b", "c", "d"]),
            (Sort::HeldFor, ["c", "b", "d", "a"]),
            (Sort::LongestWait, ["a", "b", "c", "d"]),
            (Sort::Changes, ["a", "b", "c", "d"]),
        ] {
            board.sort_by(sort);
            assert_eq!(names(&mut board), expected, "{sort:?}");
        }
        board.update(
            start + Duration::from_secs(1),
            vec![row("a", 1, 0), row("b", 4, 0)],
        );
        assert_eq!(names(&mut board), ["b", "a"]);
    }

    #[test]
    fn changes_of_the_fence_are_counted_over_the_last_looks() {
        let mut board = Board::new();
        let start = Instant::now();
        let mut look = |second: u64, fence: u64| {
            board.update(start + Duration::from_secs(second), vec![row("a", fence, 0)]);
            board.shown(1)[0].changes
        };
        assert_eq!(look(0, 1), None);
        assert_eq!(look(1, 1), Some(0.0));
        assert_eq!(look(2, 2), Some(0.5));
        assert_eq!(look(3, 2), Some(1.0 / 3.0));
        for second in 4..14 {
            look(second, second);
        }
        assert_eq!(look(14, 14), Some(1.0));
        // A free lock has no fence, and the next holder has another one.
        let free = Row {
            fence: None,
            holder: None,
            held_for: None,
            ..row("a", 0, 1)
        };
        board.update(start + Duration::from_secs(15), vec![free]);
        assert_eq!(board.shown(1)[0].changes, Some(8.0 / 9.0));
        board.update(start + Duration::from_secs(16), vec![row("a", 99, 0)]);
        assert_eq!(board.shown(1)[0].changes, Some(8.0 / 9.0));
        // What is not seen for long is forgotten.
        board.update(start + Duration::from_secs(60), vec![]);
        assert!(board.histories.is_empty());
    }

    #[test]
    fn lock_that_is_listed_twice_is_shown_once_and_each_kind_by_itself() {
        let mut board = Board::new();
        let semaphore = Row {
            kind: Kind::Semaphore,
            ..row("a", 3, 3)
        };
        board.update(Instant::now(), vec![row("a", 1, 1), row("a", 2, 2), semaphore]);
        assert_eq!((board.len(), board.waiting()), (2, 5));
    }

    #[tokio::test]
    async fn several_holders_are_summed_up() {
        let locks = LockManager::builder().label("web-7:4711");
        let locks = locks.in_memory(&MemoryStore::new()).unwrap();
        let semaphore = locks.semaphore("a", 10).permits(3);
        let shown = async || {
            let listed = locks.list_all("*").await.unwrap();
            let rows = listed.into_iter().map(Row::from);
            let mut shown: Vec<_> = rows
                .map(|row| (row.kind, row.holder.unwrap(), row.fence.unwrap()))
                .collect();
            shown.sort();
            shown
        };
        let one = semaphore.acquire().await.unwrap();
        let other = semaphore.acquire().await.unwrap();
        let writer = locks.rw_lock("a").write().acquire().await.unwrap();
        let fence = writer.fence().get();
        let of_writer = (Kind::ReadWrite, "a writer: web-7:4711".to_owned(), fence);
        let permits = |count, fence: Fence| {
            (
                Kind::Semaphore,
                format!("{count} of 10 permits in use"),
                fence.get(),
            )
        };
        assert_eq!(shown().await, [permits(6, other.fence()), of_writer]);
        let _reading = writer.downgrade().await.unwrap();
        other.release().await.unwrap();
        let of_reader = (Kind::ReadWrite, "1 reader".to_owned(), fence);
        assert_eq!(shown().await, [permits(3, one.fence()), of_reader]);
    }

    #[test]
    fn end_of_the_last_of_several_holds_is_no_change() {
        let mut board = Board::new();
        let start = Instant::now();
        for (second, fence) in [(0, 1), (1, 2), (2, 1), (3, 2), (4, 3)] {
            board.update(start + Duration::from_secs(second), vec![row("a", fence, 0)]);
        }
        assert_eq!(board.shown(1)[0].changes, Some(0.5));
    }

    #[test]
    fn scrolling_ends_at_both_ends() {
        let mut board = Board::new();
        let rows = (0..10).map(|n| row(&n.to_string(), 1, 0)).collect();
        board.update(Instant::now(), rows);
        let first = |board: &mut Board| board.shown(4)[0].name.clone();
        assert_eq!(first(&mut board), "0");
        for (by, pages, expected) in [
            (1, 0, "1"),
            (-5, 0, "0"),
            (0, 1, "4"),
            (0, 9, "6"),
            (0, -1, "2"),
            (isize::MAX, 0, "6"),
        ] {
            board.scroll(by);
            board.turn(pages);
            assert_eq!(first(&mut board), expected);
        }
        board.update(Instant::now(), vec![row("0", 1, 0)]);
        assert_eq!(first(&mut board), "0");
        board.update(Instant::now(), vec![]);
        assert!(board.shown(4).is_empty() && board.shown(0).is_empty());
    }
}
