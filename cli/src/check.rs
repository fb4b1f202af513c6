//! `fairlock check`: what is wrong with the servers on which locks are to be kept.

use std::io::{Write, stdout};

use fairlock::diagnose::{Finding, Subject, Verdict};
use serde::Serialize;

use crate::args::Check;
use crate::connection::Place;
use crate::exit::{Failure, NOT_SO, REFUSED, UNAVAILABLE};
use crate::report::printable;

/// A finding, as JSON.
#[derive(Serialize)]
struct Shown<'a> {
    server: &'a str,
    subject: String,
    right: Option<&'a str>,
    verdict: &'static str,
    text: &'a str,
}

pub(crate) async fn check(check: &Check) -> Result<u8, Failure> {
    let place = Place::of(&check.connection)?;
    let findings = place.diagnose(check.replicas).await?;
    for finding in &findings {
        if !check.quiet || finding.verdict > Verdict::Fine {
            show(finding, check.json)?;
        }
    }
    let worst = findings.iter().map(|finding| finding.verdict).max();
    Ok(status(worst, check.strict))
}

/// A right that is missing needs somebody to act, so it counts more than a server that may come back.
fn status(worst: Option<Verdict>, strict: bool) -> u8 {
    match worst {
        Some(Verdict::Refused) => REFUSED,
        Some(Verdict::Unavailable) => UNAVAILABLE,
        Some(Verdict::Warning) if strict => NOT_SO,
        _ => 0,
    }
}

fn show(finding: &Finding, json: bool) -> Result<(), Failure> {
    let verdict = match finding.verdict {
        Verdict::Fine => "ok",
        Verdict::Warning => "warning",
        Verdict::Unavailable => "unavailable",
        _ => "refused",
    };
    let line = if json {
        let right = match &finding.subject {
            Subject::Right(right) => Some(right.as_str()),
            _ => None,
        };
        let subject = if right.is_some() {
            "right".to_owned()
        } else {
            finding.subject.to_string()
        };
        let shown = Shown {
            server: &finding.server,
            subject,
            right,
            verdict,
            text: &finding.text,
        };
        serde_json::to_string(&shown).map_err(std::io::Error::from)?
    } else {
        let verdict = if finding.verdict > Verdict::Warning {
            "failed"
        } else {
            verdict
        };
        let Finding {
            server,
            subject,
            text,
            ..
        } = finding;
        printable(&format!("{verdict:<7} {server}: {subject}: {text}"))
    };
    let mut stdout = stdout().lock();
    writeln!(stdout, "{line}")?;
    Ok(stdout.flush()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_status_is_that_of_the_worst_finding() {
        for (worst, strict, expected) in [
            (None, true, 0),
            (Some(Verdict::Fine), true, 0),
            (Some(Verdict::Warning), false, 0),
            (Some(Verdict::Warning), true, 1),
            (Some(Verdict::Unavailable), false, 69),
            (Some(Verdict::Refused), false, 77),
        ] {
            assert_eq!(status(worst, strict), expected, "{worst:?}");
        }
    }
}
