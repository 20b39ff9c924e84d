//! Admission: decides which waiting sequence starts, and from which cached pages.
//!
//! Part of [`Scheduler`]; only admission looks for pages computed before. Invariant: a sequence starts only
//! if one page per running sequence stays available, so that admission does not cause the next preemption.

use tokenmill_backend::{ForwardBatch, PAGE_TOKENS, PageGroup};

use crate::{
    arena::SeqId,
    pages::{
        key::{PageNaming, Reuse},
        pool::Hit,
    },
    plan::{
        scheduler::{Scheduler, StepBudget},
        sequence::{MissReason, Rank, Stage},
        step_plan::StepPlan,
    },
};

/// Maximum number of sequences in prefill, even if the first of them takes the whole step.
const MAX_PREFILLS: usize = 8;

/// How a waiting sequence would start.
#[derive(Clone, Copy, Debug)]
struct Start {
    source: Source,
    /// Available pages of each group that it takes now or by the end of its prefill.
    n_pages: [usize; PageGroup::ALL.len()],
    /// Available state slots that it takes.
    n_states: usize,
}

#[derive(Clone, Copy, Debug)]
enum Source {
    /// From pages of the prefix cache, possibly none.
    Cache(Reuse),
    /// From the pages of the sequence that it was forked from.
    Fork(SeqId),
}

impl Scheduler {
    /// Starts waiting sequences, and resumes paused ones with caught-up consumers, in rank order while there
    /// is room. The first one without room blocks those after it, so that large requests do not starve.
    pub(crate) fn admit(&mut self, budget: StepBudget, plan: &mut StepPlan) {
        loop {
            let has_seat = self.running.len() < self.config.max_running;
            let waiting = self.waiting.first().copied();
            if has_seat
                && let Some((ready_rank, ready)) = self.first_ready()
                && waiting.is_none_or(|(rank, _)| ready_rank < rank)
            {
                self.leave_stage(ready);
                self.enter_running(ready);
                continue;
            }
            let Some((rank, id)) = waiting else { break };
            if !self.has_prefill_room(budget) {
                break;
            }
            let start = self.start_of(id);
            let has_pages = (self.groups.iter().zip(start.n_pages))
                .all(|(group, n_pages)| n_pages + self.running.len() <= group.pool.n_available());
            let has_state = start.n_states <= self.pool().states.n_available();
            if has_seat && has_pages && has_state {
                self.begin(id, start.source);
                plan.admitted.push(id);
                continue;
            }
            let lowest = self.running.last().copied();
            let victim = lowest.filter(|&lowest| self.sequences[lowest].rank.priority > rank.priority);
            let victim = if has_seat {
                self.paused.last().copied().or(victim)
            } else {
                victim
            };
            match victim {
                Some(victim) => self.preempt(victim, plan),
                None => break,
            }
        }
    }

    /// Returns the first paused sequence in rank order with a caught-up consumer.
    fn first_ready(&self) -> Option<(Rank, SeqId)> {
        let ready = self.paused.iter().filter(|&&id| !self.sequences[id].wants_pause);
        ready.map(|&id| (self.sequences[id].rank, id)).min()
    }

    /// Returns whether another prefill would get tokens in this step, or should at least be ready for the
    /// next.
    fn has_prefill_room(&self, budget: StepBudget) -> bool {
        let (mut n_decode, mut n_prefills, mut n_tokens) = (0, 0, 0);
        for &id in &self.running {
            match self.sequences[id].n_to_plan() {
                0 => {}
                1 => n_decode += 1,
                want => {
                    n_prefills += 1;
                    n_tokens += want;
                }
            }
        }
        n_prefills < MAX_PREFILLS || n_tokens < self.prefill_budget(budget, n_decode)
    }

    fn start_of(&mut self, id: SeqId) -> Start {
        let mut n_pages = [0; PageGroup::ALL.len()];
        if let Some(leader) = self.fork_source(id) {
            let sequence = &self.sequences[id];
            for (n_pages, group) in n_pages.iter_mut().zip(&self.groups) {
                // The pages are shared; the page that is written next is copied.
                let n_left = group.pages_needed(sequence.tokens.len());
                *n_pages = n_left - group.pages_needed(sequence.n_reusable()) + 1;
            }
            return Start {
                source: Source::Fork(leader),
                n_pages,
                n_states: 0,
            };
        }
        let reuse = self.cached_prefix(id);
        let n_tokens = self.sequences[id].tokens.len();
        for (group_idx, group) in self.groups.iter().enumerate() {
            let n_taken = (reuse.first_pages[group_idx]..reuse.n_pages)
                .filter(|&page_idx| {
                    matches!(
                        self.find_page(id, group_idx, page_idx),
                        Some(Hit::Idle | Hit::Host)
                    )
                })
                .count();
            let n_new = n_tokens.div_ceil(PAGE_TOKENS) - reuse.n_pages;
            n_pages[group_idx] = (n_new + n_taken).min(group.pages_needed(n_tokens));
        }
        Start {
            source: Source::Cache(reuse),
            n_pages,
            n_states: self.states_needed(id, reuse),
        }
    }

    /// Returns the state slots needed: its own, and the snapshot that it would read.
    fn states_needed(&self, id: SeqId, reuse: Reuse) -> usize {
        let states = &self.pool().states;
        let snapshot = reuse
            .n_pages
            .checked_sub(1)
            .map(|last| self.sequences[id].page_keys[last]);
        usize::from(states.is_used()) + usize::from(snapshot.is_some_and(|key| states.is_idle(key)))
    }

    /// Returns the sequence whose pages `id` can share now. Recurrent states cannot be shared, so forks of
    /// such models begin from the cache.
    fn fork_source(&self, id: SeqId) -> Option<SeqId> {
        if self.pool().states.is_used() {
            return None;
        }
        let n_shared = self.sequences[id].n_reusable();
        let leader_id = self.sequences[id].fork_of?;
        let leader = self.sequences.get(leader_id)?;
        let is_whole = (self.groups.iter().zip(&leader.tables)).all(|(group, pages)| {
            let shared_pages = group.first_visible_page(n_shared)..n_shared.div_ceil(PAGE_TOKENS);
            (pages.get(shared_pages)).is_some_and(|pages| !pages.contains(&ForwardBatch::UNMAPPED_PAGE))
        });
        // A preempted or shifted sequence has its own tokens and is computed separately.
        let is_shifted = self.sequences[id].n_dropped > 0 || leader.n_dropped > 0;
        let is_same_prompt = !is_shifted && self.sequences[id].tokens.len() == leader.n_prompt;
        (leader.n_committed >= n_shared && is_whole && is_same_prompt).then_some(leader_id)
    }

    /// Returns the longest prefix of a sequence that the cache holds.
    fn cached_prefix(&mut self, id: SeqId) -> Reuse {
        if !self.sequences[id].uses_prefix_cache {
            return Reuse::default();
        }
        let n_pages = self.sequences[id].n_reusable() / PAGE_TOKENS;
        self.ensure_page_keys(id, n_pages);
        let sequence = &self.sequences[id];
        self.longest_cached(&sequence.page_keys[..n_pages], &sequence.tokens)
    }

    /// Returns whether a sequence uses the prefix cache, and the salt of its pages; `None` once it has ended.
    pub(crate) fn cache_domain(&self, id: SeqId) -> Option<(bool, u64)> {
        (self.sequences.get(id)).map(|sequence| (sequence.uses_prefix_cache, sequence.salt))
    }

    /// Returns the names of pages in the prefix cache.
    #[cfg(test)]
    pub(crate) fn hasher(&self) -> &crate::pages::key::PrefixHasher {
        &self.hasher
    }

    fn find_page(&self, id: SeqId, group_idx: usize, page_idx: usize) -> Option<Hit> {
        let sequence = &self.sequences[id];
        let tokens = &sequence.tokens[page_idx * PAGE_TOKENS..(page_idx + 1) * PAGE_TOKENS];
        let pool = &self.groups[group_idx].pool;
        pool.find(sequence.page_keys[page_idx], tokens)
    }

    /// Computes the keys of a sequence's first `n_pages` pages that are not known yet.
    pub(crate) fn ensure_page_keys(&mut self, id: SeqId, n_pages: usize) {
        let sequence = &mut self.sequences[id];
        let mut keys = std::mem::take(&mut sequence.page_keys);
        let naming = PageNaming {
            tokens: &sequence.tokens,
            media: &sequence.media,
            salt: sequence.salt,
            adapter: sequence.adapter,
        };
        self.hasher.extend(&mut keys, &naming, n_pages);
        sequence.page_keys = keys;
    }

    fn begin(&mut self, id: SeqId, source: Source) {
        self.leave_stage(id);
        let (n_tokens, n_whole_pages) = match source {
            Source::Fork(leader) => self.share_pages(id, leader),
            Source::Cache(reuse) => self.take_prefix(id, reuse),
        };
        if self.pool().states.is_used() {
            self.take_state(id, n_whole_pages);
        }
        let is_first_stay = self.sequences[id].stay == 0;
        let miss = is_first_stay.then(|| self.miss_reason(id, source)).flatten();
        let sequence = &mut self.sequences[id];
        sequence.stay += 1;
        sequence.n_planned = n_tokens;
        sequence.n_committed = n_tokens;
        sequence.n_registered = n_whole_pages;
        if is_first_stay {
            sequence.n_cached = n_tokens;
            sequence.miss = miss;
            self.counters.prompt_tokens += sequence.tokens.len() as u64;
            self.counters.cached_tokens += n_tokens as u64;
            if let Some(miss) = miss {
                self.counters.misses[miss.index()] += 1;
            }
            self.give_earlier_answer(id);
        }
        self.enter_running(id);
    }

    /// Shares all pages of the leader's prompt except its last token. Every fork computes that token itself,
    /// because each samples its own continuation.
    fn share_pages(&mut self, id: SeqId, leader: SeqId) -> (usize, usize) {
        let n_tokens = self.sequences[id].n_reusable();
        let mut tables = std::mem::take(&mut self.sequences[id].tables);
        let shared = self.sequences[leader].tables.iter();
        for ((group, pages), shared) in self.groups.iter_mut().zip(&mut tables).zip(shared) {
            pages.extend_from_slice(&shared[..n_tokens.div_ceil(PAGE_TOKENS)]);
            for &page in pages.iter().filter(|&&page| page != ForwardBatch::UNMAPPED_PAGE) {
                group.pool.retain(page);
            }
        }
        self.sequences[id].tables = tables;
        (n_tokens, n_tokens / PAGE_TOKENS)
    }

    fn take_prefix(&mut self, id: SeqId, reuse: Reuse) -> (usize, usize) {
        let sequence = &mut self.sequences[id];
        debug_assert!(sequence.stage == Stage::Waiting && sequence.tables.iter().all(Vec::is_empty));
        let tables = self.groups.iter_mut().zip(&mut sequence.tables);
        for ((group, pages), first_page) in tables.zip(reuse.first_pages) {
            pages.resize(first_page, ForwardBatch::UNMAPPED_PAGE);
            let keys = &sequence.page_keys[first_page..reuse.n_pages];
            group.pool.take_cached(keys, pages);
        }
        (reuse.n_pages * PAGE_TOKENS, reuse.n_pages)
    }

    /// Gives a sequence that begins after `n_pages` pages its state slot, and the snapshot there.
    fn take_state(&mut self, id: SeqId, n_pages: usize) {
        let sequence = &mut self.sequences[id];
        let states = &mut self.groups[0].pool.states;
        // Retain the snapshot first, so that it is not evicted to make room.
        let snapshot = n_pages.checked_sub(1).map(|last| sequence.page_keys[last]);
        sequence.state_from = snapshot.map(|key| states.retain(key));
        sequence.state = states.allocate();
        sequence.n_restored = n_pages * PAGE_TOKENS;
        debug_assert!(
            sequence.state.is_some(),
            "the caller checked that a slot is available"
        );
    }

    fn miss_reason(&self, id: SeqId, source: Source) -> Option<MissReason> {
        let sequence = &self.sequences[id];
        let n_reusable = sequence.n_reusable() / PAGE_TOKENS;
        match source {
            Source::Fork(_) => None,
            Source::Cache(_) if !sequence.uses_prefix_cache => Some(MissReason::Disabled),
            Source::Cache(_) if n_reusable == 0 => Some(MissReason::ShortPrompt),
            Source::Cache(reuse) if reuse.n_pages == n_reusable => None,
            Source::Cache(reuse)
                if (self.groups.iter())
                    .any(|group| group.pool.was_evicted(sequence.page_keys[reuse.n_pages])) =>
            {
                Some(MissReason::Evicted)
            }
            Source::Cache(reuse) if reuse.n_pages > 0 => Some(MissReason::Diverged),
            Source::Cache(_) => Some(MissReason::Unseen),
        }
    }
}
