//! The texts of the scripts: the parts of `lua/` that make up each one, in order, and the constants in them.
//! `benches/handoff/` and `benches/instructions/` use this file too, so there is only one list.

use std::collections::HashMap;

macro_rules! joined {
    ($($part:literal),+) => {
        joined!(without_clock "lib/clock.lua" $(, $part)+)
    };
    (without_clock $($part:literal),+) => {
        concat!($(include_str!(concat!("../../../lua/", $part))),+)
    };
}

macro_rules! handing_over_permits {
    ($script:literal) => {
        joined!(
            "lib/summary.lua",
            "lib/permits.lua",
            "lib/ttl.lua",
            "lib/hand_over.lua",
            "lib/permits_holds.lua",
            "lib/permits_hand_over.lua",
            $script
        )
    };
}

pub(crate) const ACQUIRE: &str = joined!(
    "lib/summary.lua",
    "acquire.lua",
    "lib/ttl.lua",
    "lib/grant.lua",
    "lib/holds.lua",
    "lib/hand_over.lua",
    "lib/wanted.lua",
    "lib/next_holder.lua",
    "acquire_slow.lua"
);
/// Its fast path reads no clock.
pub(crate) const RELEASE: &str = joined!(
    without_clock
    "lib/summary.lua",
    "release.lua",
    "lib/clock.lua",
    "release_next.lua",
    "lib/ttl.lua",
    "lib/grant.lua",
    "lib/holds.lua",
    "lib/hand_over.lua",
    "lib/wanted.lua",
    "lib/next_holder.lua",
    "release_slow.lua",
    "lib/pass_on.lua"
);
pub(crate) const WITHDRAW: &str = joined!(
    "lib/summary.lua",
    "lib/ttl.lua",
    "lib/grant.lua",
    "lib/holds.lua",
    "lib/hand_over.lua",
    "lib/next_holder.lua",
    "withdraw.lua",
    "lib/pass_on.lua"
);
pub(crate) const RENEW: &str = joined!("lib/summary.lua", "lib/holds.lua", "renew.lua", "lib/prolong.lua");
pub(crate) const LOOK: &str = joined!("lib/summary.lua", "lib/holds.lua", "look.lua", "lib/prolong.lua");
pub(crate) const INSPECT: &str = joined!("lib/summary.lua", "lib/holds.lua", "inspect.lua");
pub(crate) const PERMITS_ACQUIRE: &str = handing_over_permits!("permits_acquire.lua");
pub(crate) const PERMITS_RELEASE: &str = handing_over_permits!("permits_release.lua");
pub(crate) const PERMITS_WITHDRAW: &str = handing_over_permits!("permits_withdraw.lua");
pub(crate) const PERMITS_RENEW: &str = joined!("lib/summary.lua", "lib/permits.lua", "permits_renew.lua");
pub(crate) const PERMITS_INSPECT: &str = joined!(
    "lib/summary.lua",
    "lib/permits.lua",
    "lib/ttl.lua",
    "lib/hand_over.lua",
    "lib/permits_holds.lua",
    "permits_inspect.lua"
);
pub(crate) const RATE_ASK: &str = joined!("lib/summary.lua", "lib/ttl.lua", "rate_ask.lua");
pub(crate) const LABEL: &str = joined!("label.lua");
pub(crate) const SPIN_ACQUIRE: &str = joined!("spin_acquire.lua");
pub(crate) const SPIN_RELEASE: &str = joined!("spin_release.lua");

/// The text that is sent for one of these: without the definitions of constants, and with their values
/// instead of their names. A server would run the definitions again on each call.
pub(crate) fn inlined(text: &str) -> String {
    let (definitions, rest): (Vec<_>, Vec<_>) = text
        .split_inclusive('\n')
        .partition(|line| constants(line).is_some());
    let values: HashMap<_, _> = definitions.into_iter().filter_map(constants).flatten().collect();
    let ends_word = |c: char| !c.is_ascii_alphanumeric() && c != '_';
    let mut inlined = String::with_capacity(text.len());
    for word_and_end in rest.into_iter().flat_map(|line| line.split_inclusive(ends_word)) {
        let word = word_and_end.trim_end_matches(ends_word);
        inlined += values.get(word).unwrap_or(&word);
        inlined += &word_and_end[word.len()..];
    }
    inlined
}

/// The names and values on a line such as `local FIRST, LAST = 1, 13 -- digits`. Names of constants are in
/// capitals.
pub(super) fn constants(line: &str) -> Option<impl Iterator<Item = (&str, &str)>> {
    let code = line.split(" --").next()?;
    let (names, values) = code.strip_prefix("local ")?.split_once('=')?;
    let is_constant = |c: char| c.is_ascii_uppercase() || "_, ".contains(c);
    let words = |list| str::split(list, ',').map(str::trim);
    names
        .chars()
        .all(is_constant)
        .then(|| words(names).zip(words(values)))
}
