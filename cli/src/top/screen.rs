//! What `top` shows: a title, the locks, and the keys.

use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Row as Cells, Table};

use super::board::{Board, Row, Sort};
use super::servers::Server;
use crate::report::printable;
use crate::spans::show;

const KEYS: &str = "q quit  sort: w waiting, l longest wait, h held for, c changes, n name  ↑↓ PgUp PgDn";

/// A column: its title, its width, and the sort that marks it.
struct Column {
    title: &'static str,
    width: u16,
    sort: Option<Sort>,
    text: fn(&Row) -> String,
}

/// The most important columns first. A screen that is too narrow leaves out the last ones.
const COLUMNS: [Column; 6] = [
    Column {
        title: "WAIT",
        width: 6,
        sort: Some(Sort::Waiting),
        text: |row| row.waiting.to_string(),
    },
    Column {
        title: "HELD BY",
        width: 22,
        sort: None,
        text: |row| row.holder.as_deref().map_or_else(|| "-".to_owned(), printable),
    },
    Column {
        title: "HELD FOR",
        width: 8,
        sort: Some(Sort::HeldFor),
        text: |row| row.held_for.map_or_else(|| "-".to_owned(), show),
    },
    Column {
        title: "LONGEST",
        width: 8,
        sort: Some(Sort::LongestWait),
        text: |row| row.longest_wait.map_or_else(|| "-".to_owned(), show),
    },
    Column {
        title: "CHANGES/s",
        width: 9,
        sort: Some(Sort::Changes),
        text: |row| {
            row.changes
                .map_or_else(|| "-".to_owned(), |changes| format!("≥{changes:.1}"))
        },
    },
    Column {
        title: "FENCE",
        width: 16,
        sort: None,
        text: |row| {
            row.fence
                .map_or_else(|| "-".to_owned(), |fence| fence.to_string())
        },
    },
];
/// A name has what the other columns leave, and at least this.
const NAME: u16 = 12;

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
    let mut width = NAME;
    let columns: Vec<&Column> = COLUMNS
        .iter()
        .take_while(|column| {
            width = width.saturating_add(column.width + 1);
            width <= area.width
        })
        .collect();
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
    let widths = std::iter::once(Constraint::Min(1));
    let widths = widths.chain(columns.iter().map(|column| Constraint::Length(column.width)));
    let page = usize::from(area.height.saturating_sub(1));
    let rows = board.shown(page).iter().map(|row| {
        let cells = std::iter::once(printable(&row.name));
        Cells::new(cells.chain(columns.iter().map(|column| (column.text)(row))))
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
            "NAME WAIT HELD BY HELD FOR LONGEST CHANGES/s FENCE"
        );
        assert_eq!(words(&lines[2]), "report 9 web-7:4711 7.0s 1m31s - 7");
        assert_eq!(words(&lines[3]), "deploy:web 2 web-7:4711 1m05s 1m38s - 65");
        assert!(lines[5].starts_with("q quit"), "{lines:?}");
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
        assert_eq!(shown[2], "a-name-of-man 3");
        assert_eq!(shown[3], "b\u{fffd}[31m        0");
        assert!(shown[4].starts_with("q quit"), "{shown:?}");
        for height in 0..8 {
            for width in (0..24).chain([45, 79, 129]) {
                lines(width, height, &mut board, Some("no answer"));
                lines(width, height, &mut board, None);
            }
        }
    }
}
