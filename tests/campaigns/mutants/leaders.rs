//! The guards of leaders, in the order of the files.

use super::{Edit, edit};

const LEADERSHIP: &str = "src/api/leadership.rs";
const TOKEN: &str = "src/api/guard/token.rs";
const WATCH: &str = "src/api/handle/looking.rs";

const LEADERS: &[&str] = &[
    "--test promises leadership::in_memory",
    "--test promises leadership::",
];

#[rustfmt::skip]
pub(super) const EDITS: &[Edit] = &[
    edit("a leadership has no local hand-off", LEADERSHIP, ".local_handoffs(1)", "", LEADERS),
    edit("a shutdown ends a campaign", LEADERSHIP,
        "why = &mut shutdown => return Ok(ControlFlow::Break(why)),\n                campaigned", "campaigned", LEADERS).within("terms"),
    edit("a shutdown ends the work", LEADERSHIP,
        "                        why = &mut shutdown => Ok(ControlFlow::Break(why)),\n", "", LEADERS),
    edit("the work ends with its lead", LEADERSHIP,
        "lost = lead.lost() => Err(lost),", "lost = lead.lost(), if false => Err(lost),", LEADERS).within("terms"),
    edit("a leader resigns when its work is done, and waits for it", LEADERSHIP,
        "= lead.release().await {", "= Ok::<(), crate::Error>(drop(lead)) {", &["--lib stats::tests"]),
    edit("a leader that has lost its lead campaigns after a pause that starts over", LEADERSHIP,
        "Err(_) => backoff.ended_after(began.elapsed()),", "Err(_) => {}", LEADERS)
        .equal("only the length of the pauses differs, by up to a second"),
    edit("a failed campaign is repeated", LEADERSHIP, "Err(error) if error.is_transient() => {", "Err(error) if false => {", LEADERS),
    edit("an error that lasts ends a run", LEADERSHIP, "Err(error) if error.is_transient() => {", "Err(error) => {", LEADERS),
    edit("a term that is passed to a task asks for a runtime", TOKEN, "            token.client.runtime.check();\n", "", LEADERS),
    edit("a watch asks no more often than it may", WATCH, "check_span(\"every\", every, LEAST, MOST)", "Ok::<(), crate::error::Invalid>(())", LEADERS),
    edit("a watch asks when a lease ends", WATCH, "Some(holder) => pause.min(", "Some(holder) => pause.max(", LEADERS),
    edit("a watch tells a change once", WATCH, "Ok(status) if !self.is_news(&status) => {}", "Ok(status) if false => drop(status),", LEADERS),
    edit("a watch tells of a new leader by the fence", WATCH, "told.holders.iter().find(|told| told.fence == holder.fence)", "told.holders.first()", &["--lib handle::looking"]),
    edit("a watch tells a label that was not known", WATCH,
        " || (told.label.is_none() && holder.label.is_some())", "", &["--lib handle::looking"]),
    edit("a watch of many holders tells of no other part of them", WATCH, "told.map_or(all_are_listed, ", "told.map_or(true, ", &["--lib handle::looking"]),
    edit("a watch of many holders tells of one more", WATCH, "(told.permits_in_use, told.readers) != (status.permits_in_use, status.readers)\n            || told", "told", &["--lib handle::looking"]).within("is_news"),
    edit("a watch pauses between its calls", WATCH, "runtime.serves(pin!(async { sleep_until(due).await })).await;", "let _ = due;", &["--test servers faults::leaders"]),
    edit("an error does not end a watch", WATCH, "Err(error) => return (Err(error), Some(self)),", "Err(error) => return (Err(error), None),",
        &["--test servers faults::leaders"]),
    edit("a watch that has ended stays ended", WATCH,
        "                    .fuse()\n", "", LEADERS),
];
