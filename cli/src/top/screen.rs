//! What `top` shows: a title, the locks, and the keys.

use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Row as Cells, Table};

use fairlock::Kind;

use super::board::{Board, Row, Sort};
use super::servers::Server;
use crate::report::printable;
use crate::spans::show;

const KEYS: &str = "q quit  sort: w wait, l longest, h held for, c changes, n name  ↑↓ PgUp PgDn";

/// A column: its title, its width, and the sort that marks it.
struct Column {
    title: &'static str,
    width: u16,
    /// How wide the screen must be for this column. What an operator needs to end a hold stays the longest.
    from: u16,
    sort: Option<Sort>,
    text: fn(&Row) -> String,
}

/// The columns after the name, which has what these leave.
const COLUMNS: [Column; 7] = [
    Column {
        title: "KIND",
        width: 4,
        from: 71,
        sort: None,
        text: |row| kind(row.kind).to_owned(),
    },
    Column {
        title: "WAIT",
        width: 6,
        from: 20,
        sort: Some(Sort::Waiting),
        text: |row| row.waiting.to_string(),
    },
    Column {
        title: "HELD BY",
        width: 22,
        from: 66,
        sort: None,
        text: |row| row.holder.as_deref().map_or_else(|| "-".to_owned(), printable),
    },
    Column {
        title: "HELD FOR",
        width: 8,
        from: 80,
        sort: Some(Sort::HeldFor),
        text: |row| row.held_for.map_or_else(|| "-".to_owned(), show),
    },
    Column {
        title: "LONGEST",
        width: 8,
        from: 90,
        sort: Some(Sort::LongestWait),
        text: |row| row.longest_wait.map_or_else(|| "-".to_owned(), show),
    },
    Column {
        title: "CHANGES/s",
        width: 9,
        from: 100,
        sort: Some(Sort::Changes),
        text: |row| {
            row.changes
                .map_or_else(|| "-".to_owned(), |changes| format!("≥{changes:.1}"))
        },
    },
    Column {
        title: "FENCE",
        width: 16,
        from: 36,
        sort: None,
        text: |row| {
            row.fence
                .map_or_else(|| "-".to_owned(), |fence| fence.to_string())
        },
    },
];

/// As short as `--kind` takes it.
fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Lock => "lock",
        Kind::Semaphore => "sem",
        Kind::ReadWrite => "rw",
        _ => "?",
    }
}

/// Leaves out the middle of a text that is too wide: names differ at their ends.
fn shortened(text: &str, width: u16) -> String {
    let wide = |text: &str| Span::raw(text).width();
    if wide(text) <= usize::from(width) {
        return text.to_owned();
    }
    let room = usize::from(width.saturating_sub(1));
    let cuts = || text.char_indices().map(|(at, _)| at);
    let begin = cuts().take_while(|at| wide(&text[..*at]) <= room / 2).last();
    let begin = &text[..begin.unwrap_or(0)];
    let end = cuts().find(|at| wide(&text[*at..]) <= room - wide(begin));
    format!("{begin}…{}", &text[end.unwrap_or(text.len())..])
}

/// What is said of the server, above the locks.
pub(super) struct Title<'a> {
    pub(super) pattern: &'a str,
    /// Which server and prefix these are.
    pub(super) at: &'a str,
    /// The servers of a quorum.
    pub(super) servers: &'a [Server],
    /// What is wrong at present.
    pub(super) trouble: Option<&'a str>,
}

pub(super) fn draw(frame: &mut Frame<'_>, board: &mut Board, title: &Title<'_>) {
    let mut left = frame.area();
    let mut cut = |height: u16, at_end: bool| {
        let height = height.min(left.height);
        let (y, rest) = if at_end {
            (left.bottom() - height, left.y)
        } else {
            (left.y, left.y + height)
        };
        let cut = Rect { y, height, ..left };
        left = Rect {
            y: rest,
            height: left.height - height,
            ..left
        };
        cut
    };
    let top = cut(1, false);
    let trouble = title.trouble.map(|trouble| (cut(1, false), trouble));
    let servers: Vec<_> = (title.servers.iter())
        .map(|server| (cut(1, false), server.line()))
        .collect();
    let bottom = cut(u16::from(frame.area().height > 4), true);

    let (locks, waiting) = (board.len(), board.waiting());
    let text = format!(
        "fairlock top {}: {locks} locks, {waiting} waiting, at {}",
        printable(title.pattern),
        printable(title.at)
    );
    frame.render_widget(Line::styled(text, Modifier::BOLD), top);
    if let Some((area, trouble)) = trouble {
        let style = Style::new().fg(Color::White).bg(Color::Red);
        frame.render_widget(Line::styled(printable(trouble), style), area);
    }
    for (area, server) in servers {
        let style = match server.is_trouble {
            true => Style::new().fg(Color::Red),
            false => Style::new(),
        };
        frame.render_widget(Line::styled(printable(&server.text), style), area);
    }
    frame.render_widget(Line::styled(KEYS, Modifier::DIM), bottom);
    table(frame, board, left);
}

fn table(frame: &mut Frame<'_>, board: &mut Board, area: Rect) {
    let columns = COLUMNS.iter().filter(|column| column.from <= area.width);
    let columns: Vec<&Column> = columns.collect();
    let others: u16 = columns.iter().map(|column| column.width + 1).sum();
    let name = area.width.saturating_sub(others);
    let mark = |title: &'static str, is_marked: bool| {
        let style = if is_marked {
            Modifier::REVERSED | Modifier::BOLD
        } else {
            Modifier::BOLD
        };
        Cell::new(Line::styled(title, style))
    };
    let sort = board.sort();
    let titles = std::iter::once(mark("NAME", sort == Sort::Name));
    let titles = titles.chain((columns.iter()).map(|column| mark(column.title, column.sort == Some(sort))));
    let widths = std::iter::once(Constraint::Length(name));
    let widths = widths.chain(columns.iter().map(|column| Constraint::Length(column.width)));
    let page = usize::from(area.height.saturating_sub(1));
    let rows = board.shown(page).iter().map(|row| {
        let cells = std::iter::once(shortened(&printable(&row.name), name));
        let others = columns.iter();
        let others = others.map(|column| shortened(&(column.text)(row), column.width));
        Cells::new(cells.chain(others))
    });
    let table = Table::new(rows, widths)
        .header(Cells::new(titles))
        .column_spacing(1);
    frame.render_widget(table, area);
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::board::tests::row;
    use super::*;

    fn lines(width: u16, height: u16, board: &mut Board, trouble: Option<&str>) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        let title = Title {
            pattern: "*",
            at: "redis://h, prefix p",
            servers: &[],
            trouble,
        };
        terminal.draw(|frame| draw(frame, board, &title)).unwrap();
        let buffer = terminal.backend().buffer();
        (0..height)
            .map(|y| {
                (0..width)
                    .map(|x| buffer[(x, y)].symbol())
                    .collect::<String>()
                    .trim_end()
                    .to_owned()
            })
            .collect()
    }

    fn board(rows: Vec<Row>) -> Board {
        let mut board = Board::new();
        board.update(Instant::now(), rows);
        board
    }

    #[test]
    fn wide_screen_shows_all_of_a_lock() {
        let mut board = board(vec![row("deploy:web", 65, 2), row("report", 7, 9)]);
        let lines = lines(100, 6, &mut board, None);
        assert_eq!(
            lines[0],
            "fairlock top *: 2 locks, 11 waiting, at redis://h, prefix p"
        );
        let words = |line: &str| {
            line.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(
            words(&lines[1]),
            "NAME KIND WAIT HELD BY HELD FOR LONGEST CHANGES/s FENCE"
        );
        assert_eq!(words(&lines[2]), "report lock 9 web-7:4711 7.0s 1m31s - 7");
        assert_eq!(words(&lines[3]), "deploy:web lock 2 web-7:4711 1m05s 1m38s - 65");
        assert!(lines[5].starts_with("q quit"), "{lines:?}");
    }

    #[test]
    fn screen_of_80_columns_shows_what_ends_a_hold_and_both_ends_of_a_long_name() {
        let row = Row {
            kind: Kind::ReadWrite,
            holder: Some("a writer: somebody@build-3:4711".to_owned()),
            held_for: Some(Duration::from_secs(65)),
            ..row("deploy:production:web", 1_790_000_000_000_000, 2)
        };
        let shown = lines(80, 6, &mut board(vec![row]), None);
        for (line, expected) in [
            (
                1,
                "NAME                KIND WAIT   HELD BY                HELD FOR FENCE",
            ),
            (
                2,
                "deploy:pr…ction:web rw   2      a writer: …uild-3:4711 1m05s    1790000000000000",
            ),
            (5, KEYS),
        ] {
            assert_eq!(shown[line], expected);
        }
    }

    #[test]
    fn fence_stays_when_other_columns_are_left_out() {
        for width in 36..130 {
            let shown = lines(
                width,
                6,
                &mut board(vec![row("a", 1_790_000_000_000_000, 2)]),
                None,
            );
            assert!(
                shown[1].contains("WAIT ") && shown[1].ends_with(" FENCE"),
                "{shown:?}"
            );
            assert!(shown[2].ends_with(" 1790000000000000"), "{shown:?}");
        }
    }

    #[test]
    fn a_text_that_is_too_wide_keeps_its_ends() {
        for (text, width, expected) in [
            ("deploy:web", 10, "deploy:web"),
            ("deploy:web", 9, "depl…:web"),
            ("deploy:web", 2, "…b"),
            ("deploy:web", 1, "…"),
            ("ロックの名前", 6, "ロ…前"),
            ("", 0, ""),
        ] {
            assert_eq!(shortened(text, width), expected, "{text} {width}");
        }
    }

    #[test]
    fn changes_are_shown_as_a_least_number() {
        let mut board = Board::new();
        let start = Instant::now();
        for second in 0..3 {
            board.update(start + Duration::from_secs(second), vec![row("a", second, 0)]);
        }
        assert!(lines(100, 6, &mut board, None)[2].contains(" ≥1.0 "));
    }

    #[test]
    fn trouble_is_a_line_of_its_own_and_the_locks_stay() {
        let mut board = board(vec![row("a", 1, 1)]);
        let lines = lines(60, 6, &mut board, Some("no answer\u{1b}[2J"));
        assert_eq!(lines[1], "no answer\u{fffd}[2J");
        assert!(lines[3].starts_with("a "), "{lines:?}");
    }

    #[test]
    fn narrow_screen_leaves_out_columns_and_no_size_is_too_small() {
        let mut board = board(vec![
            row("a-name-of-many-characters", 1, 3),
            row("b\u{1b}[31m", 1, 0),
        ]);
        let shown = lines(20, 5, &mut board, None);
        assert_eq!(shown[1], "NAME          WAIT");
        assert_eq!(shown[2], "a-name…acters 3");
        assert_eq!(shown[3], "b\u{fffd}[31m        0");
        assert!(shown[4].starts_with("q quit"), "{shown:?}");
        for height in 0..8 {
            for width in 0..130 {
                lines(width, height, &mut board, Some("no answer"));
                lines(width, height, &mut board, None);
            }
        }
    }
}
