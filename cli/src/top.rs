//! `fairlock top`: the locks, live on a terminal.

mod board;
mod screen;
mod servers;
mod tty;

use std::io::{IsTerminal, stdin, stdout};
use std::time::{Duration, Instant};

use crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use fairlock::{Error, LockManager};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, sleep};

use self::board::{Board, Row, Sort};
use self::screen::Title;
use self::servers::Server;
use self::tty::Tty;
use crate::args::Top;
use crate::connection::Place;
use crate::exit::{Failure, IO};
use crate::signals::Signals;
use crate::spans::{self, show};

/// A look at all locks may take long, so looks are not closer than this.
const MIN_INTERVAL: Duration = Duration::from_millis(100);
/// A look that takes this much longer than the others is a server that does not answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often the screen is drawn although nothing has happened.
const REDRAW: Duration = Duration::from_millis(500);

/// What one look has found.
struct Look {
    rows: Vec<Row>,
    error: Option<Error>,
}

pub(crate) async fn top(top: &Top) -> Result<u8, Failure> {
    if !(stdout().is_terminal() && stdin().is_terminal()) {
        return Err(Failure::usage(
            "top needs a terminal as its input and output; for programs there are `fairlock list --json`, \
             and `fairlock watch --json NAME`",
        ));
    }
    spans::check("--interval", top.interval, MIN_INTERVAL)?;
    let place = Place::of(&top.connection)?;
    place.check_pattern(&top.pattern).await?;
    let at = place.shown();
    let servers = servers::of(&place);
    let locks = place.connect().await?;
    let looks = look_again_and_again(locks, top.pattern.clone(), top.interval);
    let mut signals = Signals::catch()?;
    let mut tty = Tty::take()?;
    run(top, &at, &servers, looks, &mut signals, &mut tty).await
}

async fn run(
    top: &Top,
    at: &str,
    servers: &[Server],
    mut looks: mpsc::Receiver<Look>,
    signals: &mut Signals,
    tty: &mut Tty,
) -> Result<u8, Failure> {
    let mut events = Tty::events();
    let mut board = Board::new();
    let mut seen = Instant::now();
    let mut error: Option<Error> = None;
    let mut redraw = interval(REDRAW);
    redraw.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let trouble = trouble(error.as_ref(), seen.elapsed(), top.interval);
        let title = Title {
            pattern: &top.pattern,
            at,
            servers,
            trouble: trouble.as_deref(),
        };
        tty.terminal
            .draw(|frame| screen::draw(frame, &mut board, &title))?;
        tokio::select! {
            biased;
            signal = signals.next() => return Err(Failure::of_signal(signal)),
            event = events.recv() => match event {
                Some(Ok(Event::Key(key))) => if !obey(key, &mut board) {
                    return Ok(0);
                },
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(error.into()),
                None => return Err(Failure::new(IO, "the terminal cannot be read")),
            },
            look = looks.recv() => if let Some(look) = look {
                match look.error {
                    Some(error) if look.rows.is_empty() && !error.is_transient() => return Err(error.into()),
                    // The locks that were seen last are still worth showing.
                    Some(last) if look.rows.is_empty() => error = Some(last),
                    last => {
                        error = last;
                        seen = Instant::now();
                        board.update(seen, look.rows);
                    }
                }
            },
            _ = redraw.tick() => {}
        }
    }
}

/// Does what the key means. Returns `false` if that is the end.
fn obey(key: KeyEvent, board: &mut Board) -> bool {
    if key.kind == KeyEventKind::Release {
        return true;
    }
    match key.code {
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return false,
        KeyCode::Char('q') | KeyCode::Esc => return false,
        KeyCode::Char('w') => board.sort_by(Sort::Waiting),
        KeyCode::Char('l') => board.sort_by(Sort::LongestWait),
        KeyCode::Char('h') => board.sort_by(Sort::HeldFor),
        KeyCode::Char('c') => board.sort_by(Sort::Changes),
        KeyCode::Char('n') => board.sort_by(Sort::Name),
        KeyCode::Up => board.scroll(-1),
        KeyCode::Down => board.scroll(1),
        KeyCode::PageUp => board.turn(-1),
        KeyCode::PageDown => board.turn(1),
        KeyCode::Home => board.scroll(isize::MIN),
        KeyCode::End => board.scroll(isize::MAX),
        _ => {}
    }
    true
}

fn trouble(error: Option<&Error>, since: Duration, interval: Duration) -> Option<String> {
    let is_late = since > interval + PATIENCE;
    match error {
        Some(error) => Some(format!("{error} (seen {} ago)", show(since))),
        None => is_late.then(|| format!("no answer for {}", show(since))),
    }
}

/// Looks at all locks until nobody wants to know.
fn look_again_and_again(locks: LockManager, pattern: String, interval: Duration) -> mpsc::Receiver<Look> {
    let (sender, looks) = mpsc::channel(1);
    tokio::spawn(async move {
        loop {
            let mut look = Look {
                rows: Vec::new(),
                error: None,
            };
            let mut found = locks.list(&pattern);
            while let Some(listed) = found.next().await {
                match listed {
                    Ok(listed) => look.rows.push(Row::from(listed)),
                    Err(error) => look.error = look.error.or(Some(error)),
                }
            }
            if sender.send(look).await.is_err() {
                return;
            }
            sleep(interval).await;
        }
    });
    looks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_end_it_or_do_not() {
        let mut board = Board::new();
        let mut goes_on = |code, modifiers| obey(KeyEvent::new(code, modifiers), &mut board);
        assert!(!goes_on(KeyCode::Char('q'), KeyModifiers::NONE));
        assert!(!goes_on(KeyCode::Char('c'), KeyModifiers::CONTROL));
        assert!(goes_on(KeyCode::Char('c'), KeyModifiers::NONE));
        assert!(goes_on(KeyCode::Char('x'), KeyModifiers::NONE));
        assert_eq!(board.sort(), Sort::Changes);
    }

    #[test]
    fn late_answer_is_trouble_before_it_is_an_error() {
        let second = Duration::from_secs(1);
        assert_eq!(trouble(None, second, second), None);
        assert_eq!(
            trouble(None, 4 * second, second).as_deref(),
            Some("no answer for 4.0s")
        );
        assert_eq!(trouble(None, 4 * second, 5 * second), None);
    }
}
