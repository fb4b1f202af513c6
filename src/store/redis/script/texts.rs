//! The parts of `lua/` that make up each script, in order. `benches/handoff/` and `benches/instructions/` use
//! this list too, so there is only one.

macro_rules! joined {
    ($($part:literal),+) => {
        concat!(include_str!("../../../../lua/lib/clock.lua") $(, include_str!(concat!("../../../../lua/", $part)))+)
    };
}

pub(crate) const ACQUIRE: &str = joined!(
    "lib/line.lua",
    "acquire.lua",
    "lib/lock.lua",
    "lib/holds.lua",
    "lib/hand_over.lua",
    "acquire_slow.lua"
);
pub(crate) const RELEASE: &str = joined!(
    "lib/line.lua",
    "release.lua",
    "lib/lock.lua",
    "lib/holds.lua",
    "lib/hand_over.lua",
    "release_slow.lua",
    "lib/pass_on.lua"
);
pub(crate) const WITHDRAW: &str = joined!(
    "lib/line.lua",
    "lib/lock.lua",
    "lib/holds.lua",
    "lib/hand_over.lua",
    "withdraw.lua",
    "lib/pass_on.lua"
);
pub(crate) const RENEW: &str = joined!("lib/line.lua", "lib/holds.lua", "renew.lua");
pub(crate) const INSPECT: &str = joined!("lib/line.lua", "lib/holds.lua", "inspect.lua");
pub(crate) const SPIN_ACQUIRE: &str = joined!("spin_acquire.lua");
pub(crate) const SPIN_RELEASE: &str = joined!("spin_release.lua");
