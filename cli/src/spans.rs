//! Lengths of time, as they are written on the command line and in messages.

use std::time::Duration;

use crate::exit::Failure;

const ALLOWED: &str =
    "must be a number with ms, s, m, h or d behind it, or a number of seconds, as in 1.5, 500ms or 2m";

/// Reads a length of time. A number by itself is in seconds, and may have a fraction.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let number_ends = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(number_ends);
    let seconds_of_unit = match unit {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        _ => return Err(ALLOWED.to_owned()),
    };
    let number: f64 = number.parse().map_err(|_| ALLOWED.to_owned())?;
    Duration::try_from_secs_f64(number * seconds_of_unit).map_err(|_| ALLOWED.to_owned())
}

/// Writes a length of time for people, with two units at most.
pub(crate) fn show(span: Duration) -> String {
    let seconds = span.as_secs();
    match seconds {
        0 => format!("{}ms", span.as_millis()),
        1..60 => format!("{}.{}s", seconds, span.subsec_millis() / 100),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        _ => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
    }
}

/// Refuses a length of time that is too short.
pub(crate) fn check(option: &str, span: Duration, least: Duration) -> Result<(), Failure> {
    if span >= least {
        return Ok(());
    }
    let (span, least) = (show(span), show(least));
    Err(Failure::usage(format!(
        "{option} {span}: must be at least {least}"
    )))
}

/// Whole milliseconds, for machines.
pub(crate) fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_by_itself_is_in_seconds_and_units_are_those_of_sleep() {
        for (text, ms) in [
            ("0", 0),
            ("2", 2_000),
            ("1.5", 1_500),
            (".5", 500),
            ("500ms", 500),
            ("3s", 3_000),
            ("2m", 120_000),
            ("1.5h", 5_400_000),
            ("30d", 30 * 86_400_000),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(ms)), "{text}");
        }
    }

    #[test]
    fn anything_else_is_refused_with_what_is_allowed() {
        for text in [
            "", "s", "-1", "1,5", "1w", "1 s", "inf", "nan", "1e3", "1.2.3", ".", "9e99h",
        ] {
            assert_eq!(parse(text), Err(ALLOWED.to_owned()), "{text}");
        }
        let too_long = "9".repeat(40);
        assert!(parse(&too_long).is_err());
    }

    #[test]
    fn span_is_shown_in_two_units_at_most() {
        for (ms, shown) in [
            (0, "0ms"),
            (850, "850ms"),
            (12_349, "12.3s"),
            (245_000, "4m05s"),
            (7_380_000, "2h03m"),
        ] {
            assert_eq!(show(Duration::from_millis(ms)), shown);
        }
    }
}
