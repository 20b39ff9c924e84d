//! [`Index`]: the files of a [`PrefixFolder`](super::PrefixFolder), and the one used longest ago.
//!
//! It only counts; no file is touched here. Invariant: `n_bytes` is the sum over all listed files.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    time::{Duration, Instant, SystemTime},
};

use tokenmill_sched::KeptName;

/// How much older the time of use on the disk may be than the last use.
const TOUCH_INTERVAL: Duration = Duration::from_mins(1);

/// A file by its name: that of its folder, and its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct EntryName {
    pub(super) model: u128,
    pub(super) name: KeptName,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    n_bytes: u64,
    /// Its place in the order of use.
    stamp: u64,
    /// The time of use that the disk has.
    used: SystemTime,
    /// It could not be read, and is not requested before then.
    unreadable_until: Option<Instant>,
}

/// How many files there are, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Amount {
    pub(super) n_files: u64,
    pub(super) n_bytes: u64,
}

/// All files of a folder.
#[derive(Debug, Default)]
pub(super) struct Index {
    entries: HashMap<EntryName, Entry>,
    by_use: BTreeMap<u64, EntryName>,
    next_stamp: u64,
    all: Amount,
    of_models: HashMap<u128, Amount>,
    /// On their way to the disk.
    pending: HashSet<EntryName>,
}

impl Index {
    #[cfg(test)]
    pub(super) fn amount(&self) -> Amount {
        self.all
    }

    pub(super) fn amount_of(&self, model: u128) -> Amount {
        self.of_models.get(&model).copied().unwrap_or_default()
    }

    /// Whether a file is there and can be read, as far as is known.
    pub(super) fn contains(&self, name: &EntryName, now: Instant) -> bool {
        let is_readable = |entry: &Entry| entry.unreadable_until.is_none_or(|until| until <= now);
        self.entries.get(name).is_some_and(is_readable)
    }

    /// Notes that a file is there and counts, but cannot be read.
    pub(super) fn set_unreadable(&mut self, name: &EntryName, until: Instant) {
        if let Some(entry) = self.entries.get_mut(name) {
            entry.unreadable_until = Some(until);
        }
    }

    /// Adds a file, as the one that was used last.
    pub(super) fn insert(&mut self, name: EntryName, n_bytes: u64, used: SystemTime) {
        self.remove(&name);
        let stamp = self.next_stamp();
        self.by_use.insert(stamp, name);
        let entry = Entry {
            n_bytes,
            stamp,
            used,
            unreadable_until: None,
        };
        self.entries.insert(name, entry);
        for amount in [&mut self.all, self.of_models.entry(name.model).or_default()] {
            amount.n_files += 1;
            amount.n_bytes += n_bytes;
        }
    }

    /// Takes a file off.
    pub(super) fn remove(&mut self, name: &EntryName) {
        let Some(entry) = self.entries.remove(name) else {
            return;
        };
        self.by_use.remove(&entry.stamp);
        for amount in [&mut self.all, self.of_models.entry(name.model).or_default()] {
            amount.n_files -= 1;
            amount.n_bytes -= entry.n_bytes;
        }
    }

    /// Notes that a file was used. Returns whether the disk should learn of it.
    pub(super) fn touch(&mut self, name: &EntryName, now: SystemTime) -> bool {
        let stamp = self.next_stamp();
        let Some(entry) = self.entries.get_mut(name) else {
            return false;
        };
        self.by_use.remove(&std::mem::replace(&mut entry.stamp, stamp));
        self.by_use.insert(stamp, *name);
        let is_behind = now
            .duration_since(entry.used)
            .is_ok_and(|behind| behind >= TOUCH_INTERVAL);
        if is_behind {
            entry.used = now;
        }
        is_behind
    }

    /// The file that was used longest ago, where there are more bytes than `max_bytes`.
    pub(super) fn oldest_beyond(&self, max_bytes: u64) -> Option<EntryName> {
        if self.all.n_bytes <= max_bytes {
            return None;
        }
        self.by_use.first_key_value().map(|(_, &name)| name)
    }

    /// Notes that a file is about to be written. `false` where it was noted before.
    pub(super) fn begin(&mut self, name: EntryName) -> bool {
        self.pending.insert(name)
    }

    pub(super) fn is_pending(&self, name: &EntryName) -> bool {
        self.pending.contains(name)
    }

    /// It is written, or will not be.
    pub(super) fn end(&mut self, name: &EntryName) {
        self.pending.remove(name);
    }

    fn next_stamp(&mut self) -> u64 {
        self.next_stamp += 1;
        self.next_stamp
    }
}

#[cfg(test)]
mod tests {
    use tokenmill_sched::{KeptKind, PageKey};

    use super::*;

    fn name(number: u128) -> EntryName {
        let key = PageKey::from_number(number);
        EntryName {
            model: number % 2,
            name: KeptName {
                key,
                kind: KeptKind::State,
            },
        }
    }

    #[test]
    fn the_file_used_longest_ago_goes_first() {
        let mut index = Index::default();
        let began = SystemTime::UNIX_EPOCH;
        for number in 0..4 {
            index.insert(name(number), 10, began);
        }
        assert!(!index.touch(&name(0), began + TOUCH_INTERVAL / 2));
        assert!(index.touch(&name(1), began + TOUCH_INTERVAL));
        assert!(!index.touch(&name(1), began + TOUCH_INTERVAL));
        assert!(!index.touch(&name(9), began + TOUCH_INTERVAL));
        let mut gone = Vec::new();
        while let Some(oldest) = index.oldest_beyond(10) {
            index.remove(&oldest);
            gone.push(oldest);
        }
        assert_eq!(gone, [name(2), name(3), name(0)]);
        let amount = Amount {
            n_files: 1,
            n_bytes: 10,
        };
        assert_eq!((index.amount(), index.amount_of(1)), (amount, amount));
        assert_eq!(index.amount_of(0), Amount::default());
    }

    #[test]
    fn a_file_that_cannot_be_read_counts_and_is_not_found_for_a_time() {
        let (mut index, now) = (Index::default(), Instant::now());
        index.insert(name(1), 10, SystemTime::UNIX_EPOCH);
        let later = now + Duration::from_secs(1);
        index.set_unreadable(&name(1), later);
        index.set_unreadable(&name(2), later);
        assert!(!index.contains(&name(1), now) && index.contains(&name(1), later));
        assert!(!index.contains(&name(2), later));
        assert_eq!(index.amount().n_bytes, 10);
        assert_eq!(index.oldest_beyond(9), Some(name(1)));
        // Written again, it can be read.
        index.set_unreadable(&name(1), later);
        index.insert(name(1), 20, SystemTime::UNIX_EPOCH);
        assert!(index.contains(&name(1), now));
        assert_eq!(index.amount().n_bytes, 20);
    }

    #[test]
    fn a_file_that_is_written_again_counts_once() {
        let mut index = Index::default();
        for n_bytes in [10, 30] {
            index.insert(name(1), n_bytes, SystemTime::UNIX_EPOCH);
        }
        let amount = Amount {
            n_files: 1,
            n_bytes: 30,
        };
        assert_eq!(index.amount(), amount);
        assert!(index.begin(name(2)) && !index.begin(name(2)) && index.is_pending(&name(2)));
        index.end(&name(2));
        assert!(!index.is_pending(&name(2)));
    }
}
