//! The stream of changes of the prefix cache, of all groups together.
//!
//! Part of [`Scheduler`]. Invariant: changes are taken in the order in which each pool made them.

use tokenmill_backend::PageGroup;

use crate::{pages::events::PageEvent, plan::scheduler::Scheduler};

impl Scheduler {
    /// Records the changes of the prefix cache from now on.
    pub(crate) fn tell_page_events(&mut self) {
        self.page_events = Some(Vec::new());
        for (group, of) in self.groups.iter_mut().zip(PageGroup::ALL) {
            group.pool.keep_journal(of);
        }
    }

    /// Returns all pages of the prefix cache as additions, replacing the recorded changes.
    pub(crate) fn restate_page_events(&mut self) -> Vec<PageEvent> {
        for group in &mut self.groups {
            group.pool.restate_events();
        }
        if let Some(events) = &mut self.page_events {
            events.clear();
        }
        self.take_page_events()
    }

    /// Returns the recorded changes of the prefix cache.
    pub(crate) fn take_page_events(&mut self) -> Vec<PageEvent> {
        self.collect_page_events();
        self.page_events.as_mut().map(std::mem::take).unwrap_or_default()
    }

    pub(super) fn collect_page_events(&mut self) {
        if let Some(events) = &mut self.page_events {
            for group in &mut self.groups {
                group.pool.take_events(events);
            }
        }
    }
}
