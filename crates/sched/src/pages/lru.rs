//! [`LruList`]: orders a fixed set of pages by how long they have been idle.
//!
//! A doubly linked list inside one array, so that every operation takes constant time and none allocates.
//! Invariant: an index is in the list at most once.

const ABSENT: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Link {
    older: u32,
    newer: u32,
}

/// Indices `0..n`, each in the list or not, from the oldest to the newest.
#[derive(Debug)]
pub(crate) struct LruList {
    /// One link per index, and a last one that closes the ring: its `newer` is the oldest index, its `older`
    /// the newest.
    links: Vec<Link>,
    len: usize,
}

impl LruList {
    pub(crate) fn new(n: usize) -> Self {
        let absent = Link {
            older: ABSENT,
            newer: ABSENT,
        };
        let mut links = vec![absent; n + 1];
        links[n] = Link {
            older: n as u32,
            newer: n as u32,
        };
        Self { links, len: 0 }
    }

    fn end(&self) -> u32 {
        self.links.len() as u32 - 1
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn contains(&self, index: u32) -> bool {
        self.links[index as usize].older != ABSENT
    }

    /// Inserts `index` as the oldest.
    pub(crate) fn push_oldest(&mut self, index: u32) {
        debug_assert!(!self.contains(index), "page {index} is idle twice");
        let end = self.end();
        let oldest = self.links[end as usize].newer;
        self.links[index as usize] = Link {
            older: end,
            newer: oldest,
        };
        self.links[oldest as usize].older = index;
        self.links[end as usize].newer = index;
        self.len += 1;
    }

    /// Inserts `index` as the newest.
    pub(crate) fn push(&mut self, index: u32) {
        debug_assert!(!self.contains(index), "page {index} is idle twice");
        let end = self.end();
        let newest = self.links[end as usize].older;
        self.links[index as usize] = Link {
            older: newest,
            newer: end,
        };
        self.links[newest as usize].newer = index;
        self.links[end as usize].older = index;
        self.len += 1;
    }

    /// Removes `index` if it is in the list.
    pub(crate) fn remove(&mut self, index: u32) -> bool {
        let Link { older, newer } = self.links[index as usize];
        if older == ABSENT {
            return false;
        }
        self.links[older as usize].newer = newer;
        self.links[newer as usize].older = older;
        self.links[index as usize] = Link {
            older: ABSENT,
            newer: ABSENT,
        };
        self.len -= 1;
        true
    }

    /// Removes the oldest.
    pub(crate) fn pop(&mut self) -> Option<u32> {
        let oldest = self.links[self.end() as usize].newer;
        (oldest != self.end() && self.remove(oldest)).then_some(oldest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pop_yields_the_oldest_that_was_not_removed() {
        let mut list = LruList::new(4);
        for index in [2, 0, 3, 1] {
            list.push(index);
        }
        assert!(list.remove(0) && !list.remove(0));
        list.push(0);
        assert!(list.remove(3));
        list.push_oldest(3);
        let order: Vec<u32> = std::iter::from_fn(|| list.pop()).collect();
        assert_eq!(order, [3, 2, 1, 0]);
        assert_eq!(list.len(), 0);
    }
}
