//! Hash slots.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fred::util::redis_keyslot;

use crate::protocol::interface::Failure;
use crate::types::error::ServerError;

pub(super) const SLOTS: usize = 16_384;

/// The hash slot of a key or a shard channel. All keys and channels of one lock have the same slot.
pub(super) fn slot_of(key: &str) -> usize {
    usize::from(redis_keyslot(key.as_bytes()))
}

/// A set of slots that tasks share.
#[derive(Debug)]
pub(super) struct SlotSet([AtomicU64; SLOTS / 64]);

impl Default for SlotSet {
    fn default() -> SlotSet {
        SlotSet([const { AtomicU64::new(0) }; SLOTS / 64])
    }
}

impl SlotSet {
    pub(super) fn contains(&self, slot: usize) -> bool {
        self.0[slot / 64].load(Ordering::Acquire) & bit(slot) != 0
    }

    /// Returns whether the slot was not in the set.
    pub(super) fn insert(&self, slot: usize) -> bool {
        self.0[slot / 64].fetch_or(bit(slot), Ordering::AcqRel) & bit(slot) == 0
    }

    pub(super) fn remove(&self, slot: usize) {
        self.0[slot / 64].fetch_and(!bit(slot), Ordering::AcqRel);
    }

    pub(super) fn slots(&self) -> impl Iterator<Item = usize> {
        (0..SLOTS).filter(|slot| self.contains(*slot))
    }
}

fn bit(slot: usize) -> u64 {
    1 << (slot % 64)
}

/// Keeps a call from being written while its slot is in a set.
#[derive(Clone, Debug)]
pub(super) struct SlotGate {
    pub(super) closed: Arc<SlotSet>,
    pub(super) slot: usize,
}

impl SlotGate {
    pub(super) fn check(&self) -> Result<(), Failure> {
        match self.closed.contains(self.slot) {
            true => Err(unserved(self.slot)),
            false => Ok(()),
        }
    }
}

/// The failure of a call whose slot no server serves.
pub(super) fn unserved(slot: usize) -> Failure {
    Failure::NotExecuted(ServerError::new(format!(
        "no server of the cluster serves slot {slot}"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::ids::ClientId;
    use crate::protocol::keys::Keys;

    #[test]
    fn all_keys_and_channels_of_a_lock_are_in_the_slot_of_its_hash_tag() {
        for (name, tag) in [
            ("orders:42", "orders:42"),
            ("{user:7}:cart", "user:7"),
            ("a}b", "a"),
        ] {
            let Ok(keys) = Keys::new("shop:eu", name) else {
                continue;
            };
            let channel = keys.channel_of(&ClientId::from_number(7));
            for key in [&*keys.lock, &keys.queue, &keys.spin, &channel] {
                assert_eq!(slot_of(key), slot_of(tag), "{key}");
            }
        }
        assert_eq!(
            slot_of("123456789"),
            12_739,
            "the check value of the cluster specification"
        );
    }
}
