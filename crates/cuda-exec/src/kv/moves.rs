//! [`Moves`]: pages on their way between the pool and the host tier, within the pool, or between it and a staging buffer.
//!
//! This file is only about the order of streams; the store owns the pages. A page of all layers is one call of the driver if the layers
//! are alike, and a run of moves in one direction is one event. The two directions run in parallel, but a move that uses a page of the
//! other direction waits for that direction. Invariants: moves run after the step that last touched one of their pages, and work queued
//! after [`Moves::await_pages`] named a page runs after the moves of that page.

use tokenmill_backend::PageCopy;

use crate::{CudaExecError, Device, Fence, PageRows, Pinned, Stream, error::Result};

/// The two streams of moves; per-stream arrays here use this order.
const STREAMS: [Stream; 2] = [Stream::ToDevice, Stream::ToHost];

/// The direction of pages that go through a staging buffer, by its place among [`STREAMS`].
#[derive(Clone, Copy, Debug)]
pub(super) enum Way {
    ToDevice = 0,
    ToHost = 1,
}

/// Selects the earlier work that moves have to wait for.
#[derive(Clone, Copy, Debug)]
enum Before {
    /// All queued work.
    Now,
    /// The work queued before the newest step.
    NewestStep,
}

/// The state of one direction.
#[derive(Debug)]
struct Direction {
    /// Recorded after its newest moves.
    after: Fence,
    /// Recorded if the other direction has to wait for it.
    between: Fence,
    /// Pages of the pool that the compute stream does not wait for yet.
    is_moving: Vec<bool>,
    /// Pages of the pool, then those of the host tier, that it used since the other direction last waited for it.
    is_used: Vec<bool>,
    used: Vec<usize>,
}

/// Queues moves of pages.
#[derive(Debug)]
pub(super) struct Moves {
    device: Device,
    rows: Vec<PageRows>,
    host_tier: Pinned<u8>,
    n_pages: usize,
    n_host_pages: usize,
    page_bytes: usize,
    directions: [Direction; 2],
    /// Recorded after the work of all steps.
    now: Fence,
    /// Recorded before the newest step that named its pages.
    before_step: Fence,
    /// Whether steps are distinguished: with a host tier, and once pages were copied through a staging
    /// buffer.
    has_steps: bool,
    /// Number of steps that named their pages, and for each page the last that did.
    n_steps: u64,
    last_step: Vec<u64>,
}

impl Moves {
    pub(super) fn new(
        device: &Device,
        rows: Vec<PageRows>,
        n_pages: usize,
        n_host_pages: usize,
    ) -> Result<Self> {
        let page_bytes = rows.iter().map(PageRows::page_bytes).sum();
        let direction = || -> Result<Direction> {
            Ok(Direction {
                after: device.fence()?,
                between: device.fence()?,
                is_moving: vec![false; n_pages],
                is_used: vec![false; n_pages + n_host_pages],
                used: Vec::with_capacity(n_pages + n_host_pages),
            })
        };
        Ok(Self {
            device: device.clone(),
            rows,
            host_tier: device.alloc_pinned(n_host_pages * page_bytes)?,
            n_pages,
            n_host_pages,
            page_bytes,
            directions: [direction()?, direction()?],
            now: device.fence()?,
            before_step: device.fence()?,
            has_steps: n_host_pages > 0,
            n_steps: 0,
            last_step: vec![0; n_pages],
        })
    }

    /// Queues copies, in order, after the steps that touched their pages.
    pub(super) fn queue(&mut self, copies: &[PageCopy]) -> Result<()> {
        for &copy in copies {
            self.check(copy)?;
        }
        let pages = copies.iter().flat_map(|&copy| self.pages_of(copy));
        let before = self.before(pages)?;
        let mut is_held = [false; 2];
        let mut queued = Ok(());
        for run in copies.chunk_by(|&a, &b| direction_of(a) == direction_of(b)) {
            let direction = direction_of(run[0]);
            if !is_held[direction] {
                self.hold(direction, before)?;
                is_held[direction] = true;
            }
            queued = self.queue_run(direction, run);
            // Moves that were queued before a failure still run, and steps that touch their pages wait for them.
            self.directions[direction].after.record(STREAMS[direction])?;
            if queued.is_err() {
                break;
            }
        }
        queued
    }

    /// Queues copies of pages to the front of `staging` or from there, one page after the other.
    pub(super) fn stage(&mut self, way: Way, pages: &[u32], staging: &mut Pinned<u8>) -> Result<()> {
        for &page in pages {
            inside(page, self.n_pages)?;
        }
        if pages.is_empty() {
            return Ok(());
        }
        let before = self.before(pages.iter().map(|&page| page as usize))?;
        // Steps are distinguished from the next one on; until then all pages count as pages of the newest step.
        self.has_steps = true;
        let direction = way as usize;
        self.hold(direction, before)?;
        for &page in pages {
            self.take(direction, [page as usize])?;
        }
        let stream = STREAMS[direction];
        let rows = &self.rows;
        let queued = staging.copies(stream, |queue| {
            let mut offset = 0;
            for &page in pages {
                for rows in rows {
                    match way {
                        Way::ToDevice => queue.upload(offset, rows, page)?,
                        Way::ToHost => queue.download(rows, page, offset)?,
                    }
                    offset += rows.page_bytes();
                }
            }
            Ok(())
        });
        self.directions[direction].after.record(stream)?;
        queued
    }

    /// Returns the work that moves of some pages have to wait for. If the newest step did not name these
    /// pages, that is the work before it.
    fn before(&self, mut pages: impl Iterator<Item = usize>) -> Result<Before> {
        let is_of_newest = |page: usize| self.last_step.get(page) == Some(&self.n_steps);
        if self.has_steps && !pages.any(is_of_newest) {
            return Ok(Before::NewestStep);
        }
        self.now.record(Stream::Compute)?;
        Ok(Before::Now)
    }

    fn hold(&self, direction: usize, before: Before) -> Result<()> {
        let fence = match before {
            Before::Now => &self.now,
            Before::NewestStep => &self.before_step,
        };
        fence.hold(STREAMS[direction])
    }

    /// Makes a direction wait for the other one's use of these pages.
    fn take<const N: usize>(&mut self, direction: usize, pages: [usize; N]) -> Result<()> {
        self.follow_other(direction, &pages)?;
        let done = &mut self.directions[direction];
        for page in pages {
            if let Some(is_moving) = done.is_moving.get_mut(page) {
                *is_moving = true;
            }
            if !done.is_used[page] {
                done.is_used[page] = true;
                done.used.push(page);
            }
        }
        Ok(())
    }

    /// Queues copies of one direction.
    fn queue_run(&mut self, direction: usize, copies: &[PageCopy]) -> Result<()> {
        for &copy in copies {
            self.take(direction, self.pages_of(copy))?;
        }
        let Self {
            device,
            rows,
            host_tier,
            page_bytes,
            ..
        } = self;
        let stream = STREAMS[direction];
        host_tier.copies(stream, |queue| {
            for &copy in copies {
                let mut offset = 0;
                for rows in rows.iter() {
                    let on_host = |host_page: u32| host_page as usize * *page_bytes + offset;
                    match copy {
                        PageCopy::Duplicate { from, to } if from == to => {}
                        PageCopy::Duplicate { from, to } => device.copy_page(stream, rows, from, to)?,
                        PageCopy::Download { page, host_page } => {
                            queue.download(rows, page, on_host(host_page))?;
                        }
                        PageCopy::Upload { host_page, page } => {
                            queue.upload(on_host(host_page), rows, page)?;
                        }
                    }
                    offset += rows.page_bytes();
                }
            }
            Ok(())
        })
    }

    /// Makes a direction wait for the other one if that used one of the pages.
    fn follow_other(&mut self, direction: usize, pages: &[usize]) -> Result<()> {
        let other = &mut self.directions[1 - direction];
        if pages.iter().all(|&page| !other.is_used[page]) {
            return Ok(());
        }
        other.between.record(STREAMS[1 - direction])?;
        other.between.hold(STREAMS[direction])?;
        for page in other.used.drain(..) {
            other.is_used[page] = false;
        }
        Ok(())
    }

    /// Makes work queued from now on wait for the moves that touch one of `pages`. Invalid page numbers are ignored.
    pub(super) fn await_pages(&mut self, pages: &[u32]) -> Result<()> {
        for (direction, stream) in self.directions.iter_mut().zip(STREAMS) {
            debug_assert_ne!(stream, Stream::Compute);
            let is_moving = |&page: &u32| direction.is_moving.get(page as usize).copied().unwrap_or(false);
            if pages.iter().any(is_moving) {
                direction.after.hold(Stream::Compute)?;
                direction.is_moving.fill(false);
            }
        }
        // If pages move only within the pool, which is rare, steps should not pay for tracking which pages they touched.
        if self.has_steps {
            self.before_step.record(Stream::Compute)?;
            self.n_steps += 1;
            for &page in pages {
                if let Some(step) = self.last_step.get_mut(page as usize) {
                    *step = self.n_steps;
                }
            }
        }
        Ok(())
    }

    /// Returns the two pages of a copy; pages of the host tier are numbered after those of the pool.
    fn pages_of(&self, copy: PageCopy) -> [usize; 2] {
        match copy {
            PageCopy::Duplicate { from, to } => [from as usize, to as usize],
            PageCopy::Download { page, host_page } | PageCopy::Upload { host_page, page } => {
                [page as usize, self.n_pages + host_page as usize]
            }
        }
    }

    fn check(&self, copy: PageCopy) -> Result<()> {
        match copy {
            PageCopy::Duplicate { from, to } => {
                inside(from, self.n_pages).and_then(|()| inside(to, self.n_pages))
            }
            PageCopy::Download { page, host_page } | PageCopy::Upload { host_page, page } => {
                inside(page, self.n_pages).and_then(|()| inside(host_page, self.n_host_pages))
            }
        }
    }
}

fn inside(page: u32, len: usize) -> Result<()> {
    let page = page as usize;
    if page < len {
        return Ok(());
    }
    Err(CudaExecError::Bounds {
        range: page..page.saturating_add(1),
        len,
    })
}

/// Returns which of [`STREAMS`] a copy uses.
fn direction_of(copy: PageCopy) -> usize {
    match copy {
        PageCopy::Upload { .. } => 0,
        PageCopy::Download { .. } | PageCopy::Duplicate { .. } => 1,
    }
}
