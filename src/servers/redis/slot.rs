//! Hash slots.

use fred::util::redis_keyslot;

use crate::protocol::interface::Failure;
use crate::types::error::ServerError;

pub(super) const SLOTS: usize = 16_384;

/// The hash slot of a key or a shard channel. All keys and channels of one lock have the same slot.
pub(super) fn slot_of(key: &str) -> usize {
    usize::from(redis_keyslot(key.as_bytes()))
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
