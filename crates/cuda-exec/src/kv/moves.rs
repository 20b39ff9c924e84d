//! [`Moves`]: pages on their way between the pool and the host tier, or within the pool.
//!
//! Separate from the store, which owns the pages, because the order of streams is all that it is about. A page of all layers is one
//! call of the driver where the layers are alike, and a run of moves in one direction is one event. The two directions run next to each
//! other; where a move uses a page that the other direction used, it waits for that direction. Invariants: moves come after the step that
//! last touched one of their pages, and the work queued after [`Moves::await_pages`] named a page comes after the moves of that page.

use tokenmill_backend::PageCopy;

use crate::{CudaExecError, Device, Fence, PageRows, Pinned, Stream, error::Result};

/// The two streams of moves, in the order in which things of each are kept here.
const STREAMS: [Stream; 2] = [Stream::ToDevice, Stream::ToHost];

/// What a direction has done.
#[derive(Debug)]
struct Direction {
    /// Set behind its newest moves.
    after: Fence,
    /// Set where the other direction has to wait for it.
    between: Fence,
    /// Pages of the pool that the compute stream was not yet told to wait for.
    is_moving: Vec<bool>,
    /// Pages of the pool, then those of the host tier, that it used since the other direction waited for it.
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
    /// Set behind the work of all steps.
    now: Fence,
    /// Set before the newest step that named its pages.
    before_step: Fence,
    /// How many named theirs, and the last that named each page.
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
            n_steps: 0,
            last_step: vec![0; n_pages],
        })
    }

    /// Queues copies, in order, behind the steps that touched their pages.
    pub(super) fn queue(&mut self, copies: &[PageCopy]) -> Result<()> {
        for &copy in copies {
            self.check(copy)?;
        }
        let is_of_newest = |&copy: &PageCopy| {
            let [page, other] = self.pages_of(copy);
            [page, other]
                .into_iter()
                .filter_map(|page| self.last_step.get(page))
                .any(|&step| step == self.n_steps)
        };
        let waits_for_all = self.n_host_pages == 0 || copies.iter().any(is_of_newest);
        if waits_for_all {
            self.now.record(Stream::Compute)?;
        }
        let mut is_held = [false; 2];
        let mut queued = Ok(());
        for run in copies.chunk_by(|&a, &b| direction_of(a) == direction_of(b)) {
            let direction = direction_of(run[0]);
            if !is_held[direction] {
                let before = if waits_for_all {
                    &self.now
                } else {
                    &self.before_step
                };
                before.hold(STREAMS[direction])?;
                is_held[direction] = true;
            }
            queued = self.queue_run(direction, run);
            // What was queued before a failure runs, and the steps that touch its pages wait for it.
            self.directions[direction].after.record(STREAMS[direction])?;
            if queued.is_err() {
                break;
            }
        }
        queued
    }

    /// Queues copies of one direction.
    fn queue_run(&mut self, direction: usize, copies: &[PageCopy]) -> Result<()> {
        for &copy in copies {
            self.follow_other(direction, copy)?;
            let pages = self.pages_of(copy);
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

    /// Lets a direction wait for the other one where that used a page of the copy.
    fn follow_other(&mut self, direction: usize, copy: PageCopy) -> Result<()> {
        let pages = self.pages_of(copy);
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

    /// Lets the work queued from now on wait for the moves, if any of them touches one of `pages`. Numbers that are no
    /// page are passed over.
    pub(super) fn await_pages(&mut self, pages: &[u32]) -> Result<()> {
        for (direction, stream) in self.directions.iter_mut().zip(STREAMS) {
            debug_assert_ne!(stream, Stream::Compute);
            let is_moving = |&page: &u32| direction.is_moving.get(page as usize).copied().unwrap_or(false);
            if pages.iter().any(is_moving) {
                direction.after.hold(Stream::Compute)?;
                direction.is_moving.fill(false);
            }
        }
        // Without a host tier pages only move within the pool, seldom: no step pays for knowing which of them it touched.
        if self.n_host_pages > 0 {
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

    /// The two pages of a copy; those of the host tier are counted behind those of the pool.
    fn pages_of(&self, copy: PageCopy) -> [usize; 2] {
        match copy {
            PageCopy::Duplicate { from, to } => [from as usize, to as usize],
            PageCopy::Download { page, host_page } | PageCopy::Upload { host_page, page } => {
                [page as usize, self.n_pages + host_page as usize]
            }
        }
    }

    fn check(&self, copy: PageCopy) -> Result<()> {
        let inside = |page: u32, len: usize| {
            let page = page as usize;
            if page < len {
                return Ok(());
            }
            Err(CudaExecError::Bounds {
                range: page..page.saturating_add(1),
                len,
            })
        };
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

/// Which of [`STREAMS`] a copy takes.
fn direction_of(copy: PageCopy) -> usize {
    match copy {
        PageCopy::Upload { .. } => 0,
        PageCopy::Download { .. } | PageCopy::Duplicate { .. } => 1,
    }
}
