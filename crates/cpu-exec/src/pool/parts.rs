//! [`Partition`]: the division of a buffer, which one job writes to, between the job's chunks.
//!
//! A matrix product writes, for each block of weight rows, a block of columns of its output. These parts are
//! disjoint but not contiguous, which `chunks_mut` cannot express. A partition takes the whole buffer, and
//! the pool passes each of its parts to one chunk, as a [`Patch`]. Nothing is allocated and no part is
//! searched for.
//!
//! | partition | parts | why they are disjoint |
//! |---|---|---|
//! | [`Columns`] | all rows of some adjacent columns | by construction |
//! | [`Patches`] | listed rectangles | the list is checked to be in order, once |
//! | [`Few`] | the parts of several partitions, one after the other | each part belongs to one of them |
//! | a pair | the parts of the same index of both | they are in different buffers |
//!
//! Invariant: no two parts of a partition overlap, and the job consumes the partition; so code that writes to
//! parts needs no `unsafe`.

use std::{marker::PhantomData, ops::Range};

/// A pointer that may cross threads; code that dereferences it keeps its accesses disjoint.
pub(super) struct SendPtr<T>(*mut T);

// SAFETY: the pointer is an address; every dereference states why it is exclusive. `T: Send` since the items are
// written on other threads.
unsafe impl<T: Send> Sync for SendPtr<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for SendPtr<T> {}

impl<T> SendPtr<T> {
    pub(super) fn new(ptr: *mut T) -> Self {
        Self(ptr)
    }

    pub(super) fn get(&self) -> *mut T {
        self.0
    }
}

/// A buffer cut into parts, one for each chunk of a job.
///
/// # Safety
/// Parts of different indices never overlap, and only parts access the memory of the partition.
pub(crate) unsafe trait Partition: Sync {
    /// The part of the buffer that a chunk writes to.
    type Part;

    /// Returns the number of parts.
    fn n_parts(&self) -> usize;

    /// Returns part `part_idx`.
    ///
    /// # Safety
    /// `part_idx` is below [`Partition::n_parts`], and no index is passed twice in the partition's life.
    unsafe fn part(&self, part_idx: usize) -> Self::Part;
}

/// A rectangle of a row-major buffer, written to by one chunk.
pub(crate) struct Patch<'a, T> {
    /// The first item, if there is one.
    first: *mut T,
    n_rows: usize,
    n_cols: usize,
    /// The number of items from the start of a row to that of the next.
    stride: usize,
    items: PhantomData<&'a mut [T]>,
}

impl<T> Patch<'_, T> {
    /// Returns a row, `[n_cols]`, counted from the rectangle's first.
    pub(crate) fn row(&mut self, row_idx: usize) -> &mut [T] {
        assert!(
            row_idx < self.n_rows,
            "row {row_idx} of a part of {} rows",
            self.n_rows
        );
        // SAFETY: the row is inside the rectangle, so inside its buffer.
        let row = unsafe { self.first.add(row_idx * self.stride) };
        // SAFETY: the rectangle belongs to this part alone, which is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(row, self.n_cols) }
    }

    /// Copies row `from` to row `to`.
    pub(crate) fn copy_row(&mut self, from: usize, to: usize)
    where
        T: Copy,
    {
        let source: *const T = self.row(from).as_ptr();
        let target = self.row(to);
        // SAFETY: both rows are inside the rectangle, which is borrowed mutably; they are one or do not overlap.
        unsafe { std::ptr::copy(source, target.as_mut_ptr(), target.len()) };
    }

    /// Returns all items, if the part has whole rows of its buffer.
    pub(crate) fn all(&mut self) -> &mut [T] {
        assert!(
            self.n_cols == self.stride || self.n_rows <= 1,
            "a part of {} columns in rows of {}",
            self.n_cols,
            self.stride
        );
        let n_items = self.n_rows * self.n_cols;
        if n_items == 0 {
            return &mut [];
        }
        // SAFETY: the rows follow one another and belong to this part alone, which is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.first, n_items) }
    }
}

/// All rows of a buffer `[n_rows, n_cols]`, cut into runs of `part_cols` columns, the last one shorter.
pub(crate) struct Columns<'a, T> {
    base: SendPtr<T>,
    n_rows: usize,
    n_cols: usize,
    part_cols: usize,
    borrowed: PhantomData<&'a mut ()>,
}

impl<'a, T> Columns<'a, T> {
    /// Cuts `items`, rows of `n_cols`.
    ///
    /// # Panics
    /// If `items` is not a whole number of rows, or `part_cols` is 0.
    pub(crate) fn new(items: &'a mut [T], n_cols: usize, part_cols: usize) -> Self {
        assert!(part_cols > 0, "parts of no columns");
        let n_rows = items.len().checked_div(n_cols).unwrap_or(0);
        assert_eq!(items.len(), n_rows * n_cols, "items in rows of {n_cols}");
        Self {
            base: SendPtr::new(items.as_mut_ptr()),
            n_rows,
            n_cols,
            part_cols,
            borrowed: PhantomData,
        }
    }
}

// SAFETY: part `i` has the columns from `i * part_cols` to the next part's; they are inside the buffer, which is borrowed
// for `'a` and not reachable in another way.
unsafe impl<'a, T: Send + 'a> Partition for Columns<'a, T> {
    type Part = Patch<'a, T>;

    fn n_parts(&self) -> usize {
        self.n_cols.div_ceil(self.part_cols)
    }

    unsafe fn part(&self, part_idx: usize) -> Patch<'a, T> {
        let start = part_idx * self.part_cols;
        Patch {
            first: self.base.get().wrapping_add(start),
            n_rows: self.n_rows,
            n_cols: self.part_cols.min(self.n_cols - start),
            stride: self.n_cols,
            items: PhantomData,
        }
    }
}

/// The rows and columns of a rectangle in a buffer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rect {
    pub(crate) rows: Range<usize>,
    pub(crate) cols: Range<usize>,
}

impl Rect {
    fn is_empty(&self) -> bool {
        self.rows.is_empty() || self.cols.is_empty()
    }

    /// Returns whether it has the same rows as `other` and later columns, or later rows.
    fn follows(&self, other: &Self) -> bool {
        self.rows == other.rows && self.cols.start >= other.cols.end || self.rows.start >= other.rows.end
    }
}

/// A list of rectangles of a row-major buffer.
pub(crate) struct Patches<'a, T> {
    base: SendPtr<T>,
    n_cols: usize,
    rects: &'a [Rect],
    borrowed: PhantomData<&'a mut ()>,
}

impl<'a, T> Patches<'a, T> {
    /// Cuts `items`, rows of `n_cols`. Parts without items may be anywhere in the list.
    ///
    /// # Panics
    /// If a rectangle is outside of the buffer, or does not follow those before it: each has the rows of the
    /// one before it and later columns, or later rows.
    pub(crate) fn new(items: &'a mut [T], n_cols: usize, rects: &'a [Rect]) -> Self {
        let n_rows = items.len().checked_div(n_cols).unwrap_or(0);
        let mut last = &Rect::default();
        for rect in rects.iter().filter(|rect| !rect.is_empty()) {
            assert!(
                rect.rows.end <= n_rows && rect.cols.end <= n_cols,
                "{rect:?} of {n_rows} rows of {n_cols}"
            );
            assert!(rect.follows(last), "{rect:?} after {last:?}");
            last = rect;
        }
        Self {
            base: SendPtr::new(items.as_mut_ptr()),
            n_cols,
            rects,
            borrowed: PhantomData,
        }
    }
}

// SAFETY: the list was checked, and it cannot change while it is borrowed: rectangles are inside the buffer and follow one
// another, by which none has an item of an earlier one. The buffer is borrowed for `'a` and not reachable in another way.
unsafe impl<'a, T: Send + 'a> Partition for Patches<'a, T> {
    type Part = Patch<'a, T>;

    fn n_parts(&self) -> usize {
        self.rects.len()
    }

    unsafe fn part(&self, part_idx: usize) -> Patch<'a, T> {
        let rect = &self.rects[part_idx];
        let (first, n_rows) = if rect.is_empty() {
            (0, 0)
        } else {
            (rect.rows.start * self.n_cols + rect.cols.start, rect.rows.len())
        };
        Patch {
            first: self.base.get().wrapping_add(first),
            n_rows,
            n_cols: rect.cols.len(),
            stride: self.n_cols,
            items: PhantomData,
        }
    }
}

/// Up to `N` partitions; the parts of one come after those of the other.
pub(crate) struct Few<P, const N: usize> {
    partitions: [Option<P>; N],
    /// The index of each partition's first part.
    starts: [usize; N],
    n_parts: usize,
}

impl<P: Partition, const N: usize> Few<P, N> {
    /// Takes partitions in order.
    ///
    /// # Panics
    /// If there are more than `N`.
    pub(crate) fn new(partitions: impl Iterator<Item = P>) -> Self {
        let mut few = Self {
            partitions: [const { None }; N],
            starts: [0; N],
            n_parts: 0,
        };
        for (i, partition) in partitions.enumerate() {
            few.starts[i] = few.n_parts;
            few.n_parts += partition.n_parts();
            few.partitions[i] = Some(partition);
        }
        few
    }
}

// SAFETY: an index leads to one partition and one of its indices, no other index to the same two.
unsafe impl<P: Partition, const N: usize> Partition for Few<P, N> {
    /// The index of the partition, the index of the part in it, and the part.
    type Part = (usize, usize, P::Part);

    fn n_parts(&self) -> usize {
        self.n_parts
    }

    unsafe fn part(&self, part_idx: usize) -> Self::Part {
        let slots = self.partitions.iter().zip(&self.starts).enumerate();
        let (which, (partition, start)) = (slots.rev())
            .find(|(_, (partition, start))| partition.is_some() && **start <= part_idx)
            .expect("the first partition starts at 0");
        let partition = partition.as_ref().expect("it is the one that was looked for");
        let own_idx = part_idx - start;
        // SAFETY: `part_idx` is passed once, and below the start of the next partition.
        (which, own_idx, unsafe { partition.part(own_idx) })
    }
}

// SAFETY: parts of each partition do not overlap, nor do the buffers of the two.
unsafe impl<A: Partition, B: Partition> Partition for (A, B) {
    type Part = (A::Part, B::Part);

    /// # Panics
    /// If the two have different numbers of parts.
    fn n_parts(&self) -> usize {
        assert_eq!(self.0.n_parts(), self.1.n_parts(), "parts of two buffers");
        self.0.n_parts()
    }

    unsafe fn part(&self, part_idx: usize) -> Self::Part {
        // SAFETY: `part_idx` is passed once, and each partition has as many parts.
        unsafe { (self.0.part(part_idx), self.1.part(part_idx)) }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Writes `index + 1` to every item of every part; the items must be 0 before.
    fn mark<'a, P: Partition<Part = Patch<'a, u32>>>(partition: &P) {
        for part_idx in 0..partition.n_parts() {
            // SAFETY: each index once.
            let mut part = unsafe { partition.part(part_idx) };
            for row_idx in 0..part.n_rows {
                for item in part.row(row_idx) {
                    assert_eq!(std::mem::replace(item, part_idx as u32 + 1), 0);
                }
            }
        }
    }

    #[test]
    fn columns_are_dealt_once_each() {
        let mut items = [0; 3 * 5];
        mark(&Columns::new(&mut items, 5, 2));
        assert_eq!(items, [[1, 1, 2, 2, 3]; 3].as_flattened());
        assert_eq!(Columns::new(&mut [0u32; 0], 0, 4).n_parts(), 0);
        assert_eq!(Columns::new(&mut [0u32; 0], 9, 4).n_parts(), 3);
    }

    fn rect(rows: Range<usize>, cols: Range<usize>) -> Rect {
        Rect { rows, cols }
    }

    #[test]
    fn rectangles_are_dealt_once_each() {
        let rects = [
            rect(0..2, 0..1),
            rect(0..0, 0..0),
            rect(0..2, 1..3),
            rect(2..3, 0..3),
        ];
        let mut items = [0; 3 * 3];
        mark(&Patches::new(&mut items, 3, &rects));
        assert_eq!(items, [1, 3, 3, 1, 3, 3, 4, 4, 4]);
    }

    #[test]
    fn rectangles_that_may_overlap_or_leave_the_buffer_are_refused() {
        for rects in [
            [rect(0..2, 0..2), rect(1..3, 0..1)],
            [rect(0..2, 0..2), rect(0..1, 2..3)],
            [rect(0..1, 1..3), rect(0..1, 0..2)],
            [rect(1..2, 0..3), rect(0..1, 0..3)],
            [rect(0..1, 0..1), rect(2..4, 0..1)],
            [rect(0..1, 0..1), rect(1..2, 1..4)],
        ] {
            let refused = std::panic::catch_unwind(|| Patches::new(&mut [0u32; 9], 3, &rects).n_parts());
            assert!(refused.is_err(), "{rects:?}");
        }
    }

    #[test]
    fn a_few_partitions_are_dealt_one_after_the_other() {
        let (mut a, mut b, mut c) = ([0u32; 4], [0u32; 0], [0u32; 2]);
        let few = Few::<_, 4>::new(
            [
                Columns::new(&mut a, 4, 3),
                Columns::new(&mut b, 0, 3),
                Columns::new(&mut c, 1, 3),
            ]
            .into_iter(),
        );
        // SAFETY: each index once.
        let found: Vec<_> = (0..few.n_parts()).map(|i| unsafe { few.part(i) }).collect();
        let found: Vec<_> = found
            .iter()
            .map(|(which, own_idx, _)| (*which, *own_idx))
            .collect();
        assert_eq!(found, [(0, 0), (0, 1), (2, 0)]);
    }

    #[test]
    #[should_panic(expected = "row 2 of a part of 2 rows")]
    fn a_part_ends_where_it_ends() {
        let mut items = [0; 4];
        // SAFETY: the index once.
        let mut part = unsafe { Columns::new(&mut items, 2, 1).part(1) };
        part.row(2);
    }

    #[test]
    fn whole_rows_are_one_slice() {
        let mut items = [0; 4 * 3];
        let rects = [rect(0..0, 0..0), rect(1..3, 0..3)];
        let patches = Patches::new(&mut items, 3, &rects);
        // SAFETY: each index once.
        let (mut none, mut two) = unsafe { (patches.part(0), patches.part(1)) };
        assert!(none.all().is_empty());
        two.all().fill(1);
        assert_eq!(items, [[0; 3], [1; 3], [1; 3], [0; 3]].as_flattened());
    }
}
