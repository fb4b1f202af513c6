//! The rules of spin locks.

use uuid::Uuid;

use super::Rules;
use crate::owner::Owner;
use crate::store::memory::lock::Now;
use crate::store::{SpinAcquire, SpinAcquired, SpinRelease, SpinReleased};
use crate::time::server_time::millis;

#[derive(Debug)]
pub(crate) struct Spin {
    pub(crate) owner: Owner,
    pub(crate) count: u64,
    /// The request that took the last hold.
    pub(crate) request: Uuid,
    pub(super) until: u64,
}

impl Rules {
    pub(crate) fn spin_acquire(&mut self, call: &SpinAcquire, now: Now) -> SpinAcquired {
        let until = now.ms + millis(call.lease);
        let held = self
            .spins
            .get_mut(&call.keys.spin)
            .filter(|spin| spin.until > now.ms);
        match held {
            Some(spin) if spin.owner == call.owner => {
                if spin.request != call.request {
                    spin.request = call.request;
                    spin.count += 1;
                }
                spin.until = spin.until.max(until);
                SpinAcquired::Held(spin.count)
            }
            Some(_) => SpinAcquired::Busy,
            None => {
                let spin = Spin {
                    owner: call.owner.clone(),
                    count: 1,
                    request: call.request,
                    until,
                };
                self.spins.insert(call.keys.spin.clone(), spin);
                SpinAcquired::Held(1)
            }
        }
    }

    pub(crate) fn spin_release(&mut self, call: &SpinRelease, now: Now) -> SpinReleased {
        let held = self
            .spins
            .get_mut(&call.keys.spin)
            .filter(|spin| spin.until > now.ms);
        let Some(spin) = held.filter(|spin| spin.owner == call.owner) else {
            return SpinReleased::NotHeld;
        };
        spin.count -= 1;
        let left = spin.count;
        if left == 0 {
            self.spins.remove(&call.keys.spin);
        }
        SpinReleased::Left(left)
    }
}
