//! A short list inside the state, which is copied and compared without any allocation.

use std::cmp::Ordering;
use std::hash::{Hash, Hasher};
use std::ops::{Deref, DerefMut};

#[derive(Clone, Copy, Debug)]
pub struct List<T, const N: usize> {
    length: u8,
    items: [T; N],
}

impl<T: Copy + Default, const N: usize> List<T, N> {
    pub fn push(&mut self, item: T) {
        self.items[usize::from(self.length)] = item;
        self.length += 1;
    }

    pub fn remove(&mut self, index: usize) -> T {
        self[index..].rotate_left(1);
        self.length -= 1;
        self.items[usize::from(self.length)]
    }

    pub fn retain(&mut self, keep: impl Fn(&T) -> bool) {
        for item in std::mem::take(self).iter().filter(|item| keep(item)) {
            self.push(*item);
        }
    }
}

impl<T: Copy + Default, const N: usize> Default for List<T, N> {
    fn default() -> List<T, N> {
        List {
            length: 0,
            items: [T::default(); N],
        }
    }
}

impl<T, const N: usize> Deref for List<T, N> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.items[..usize::from(self.length)]
    }
}

impl<T, const N: usize> DerefMut for List<T, N> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.items[..usize::from(self.length)]
    }
}

impl<T: PartialEq, const N: usize> PartialEq for List<T, N> {
    fn eq(&self, other: &List<T, N>) -> bool {
        **self == **other
    }
}

impl<T: Eq, const N: usize> Eq for List<T, N> {}

impl<T: Ord, const N: usize> PartialOrd for List<T, N> {
    fn partial_cmp(&self, other: &List<T, N>) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T: Ord, const N: usize> Ord for List<T, N> {
    fn cmp(&self, other: &List<T, N>) -> Ordering {
        (**self).cmp(&**other)
    }
}

impl<T: Hash, const N: usize> Hash for List<T, N> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}
