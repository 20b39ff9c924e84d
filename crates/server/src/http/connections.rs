//! [`Connections`] limits how many connections a server holds and closes idle ones to make room.
//!
//! A limit concerns all connections. Invariants: the server never holds more connections than places plus
//! [`RESERVED`] for probes; a connection is idle exactly while it has no request; at most half of the places
//! are idle; the connection that has been idle longest leaves first.

use std::{
    collections::BTreeMap,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::Notify,
    time::{Instant, sleep_until, timeout},
};

/// Places beyond the configured number. Their connections get answers to probes only, and close soon.
const RESERVED: usize = 32;

/// Idle connections that are closed at a time. Many of them usually mean an attack, and the next client should not have to wait again.
const MAX_LEAVING: usize = 32;

/// Longest wait for a place before a connection gets a reserved one. Idle connections close in less.
const ROOM_WAIT: Duration = Duration::from_millis(300);

/// Time for the first request of a connection to arrive. Clients do not expect a new connection to close without an answer.
const FIRST_REQUEST_TIME: Duration = Duration::from_millis(100);

/// Counts the connections of a server.
#[derive(Debug)]
pub(crate) struct Connections {
    maximum: usize,
    state: Mutex<State>,
    /// Notified when a place becomes free.
    freed: Notify,
}

#[derive(Debug, Default)]
struct State {
    n_open: usize,
    n_reserved: usize,
    /// Number of the next idle period.
    next: u64,
    /// Idle connections, the longest idle first.
    idle: BTreeMap<u64, Arc<Notices>>,
    /// Idle connections that were asked to close, and still have time to do so.
    leaving: BTreeMap<u64, Arc<Notices>>,
}

/// Carries notices to one connection.
#[derive(Debug, Default)]
struct Notices {
    /// Asks the connection to close.
    leave: Notify,
    /// Asks it to close at once, because another one waits for its place.
    hurry: Notify,
    /// Notified when the connection has no request any more.
    idle: Notify,
}

/// Says which requests a place may serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Any request.
    Usual,
    /// Probes only.
    Reserved,
}

/// Holds a connection's place until it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    connections: Arc<Connections>,
    kind: Kind,
    notices: Arc<Notices>,
    /// When its client could first send a request.
    opened: Instant,
    /// Changed only under the lock of the connections.
    count: Arc<Mutex<RequestCount>>,
}

/// Counts the requests of a connection.
#[derive(Debug)]
struct RequestCount {
    n_requests: usize,
    /// Whether it ever had a request.
    has_begun: bool,
    /// Start of the idle period and its number; `None` while a request runs.
    idle: Option<(Instant, u64)>,
}

/// Marks a running request; the connection is not idle until this is dropped.
#[derive(Debug)]
pub(crate) struct RequestGuard {
    connections: Arc<Connections>,
    notices: Arc<Notices>,
    count: Arc<Mutex<RequestCount>>,
}

impl Connections {
    /// Creates places for `maximum` connections.
    pub(crate) fn new(maximum: usize) -> Arc<Self> {
        Arc::new(Self {
            maximum,
            state: Mutex::default(),
            freed: Notify::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a place. If all are taken, the connections that have been idle longest close; if none is idle, the connection gets a
    /// reserved place.
    pub(crate) async fn enter(self: &Arc<Self>) -> Place {
        if let Some(place) = self.take(Kind::Usual) {
            return place;
        }
        self.make_room();
        if let Ok(place) = timeout(ROOM_WAIT, self.usual()).await {
            return place;
        }
        if let Some(place) = self.take(Kind::Reserved) {
            return place;
        }
        self.usual().await
    }

    /// Waits for a usual place.
    async fn usual(self: &Arc<Self>) -> Place {
        loop {
            let mut freed = pin!(self.freed.notified());
            // Register before looking, or a place that becomes free in between is missed.
            freed.as_mut().enable();
            if let Some(place) = self.take(Kind::Usual) {
                return place;
            }
            freed.await;
        }
    }

    fn take(self: &Arc<Self>, kind: Kind) -> Option<Place> {
        let mut state = self.lock();
        let (n_taken, maximum) = match kind {
            Kind::Usual => (&mut state.n_open, self.maximum),
            Kind::Reserved => (&mut state.n_reserved, RESERVED),
        };
        if *n_taken >= maximum {
            return None;
        }
        *n_taken += 1;
        let notices = Arc::<Notices>::default();
        // A new connection is idle until its first request; connections in reserved places close by themselves.
        let idle = (kind == Kind::Usual).then(|| (Instant::now(), self.begin_idle(&mut state, &notices)));
        Some(Place {
            connections: Arc::clone(self),
            kind,
            notices,
            opened: Instant::now(),
            count: Arc::new(Mutex::new(RequestCount {
                n_requests: 0,
                has_begun: false,
                idle,
            })),
        })
    }

    /// Records an idle connection. Each keeps about 27 kB of buffers, so beyond the limit the longest idle one is asked to close.
    fn begin_idle(&self, state: &mut State, notices: &Arc<Notices>) -> u64 {
        let number = state.next;
        state.next += 1;
        state.idle.insert(number, Arc::clone(notices));
        if state.idle.len() > (self.maximum / 2).max(1)
            && let Some((number, longest)) = state.idle.pop_first()
        {
            longest.leave.notify_one();
            state.leaving.insert(number, longest);
        }
        number
    }

    /// Makes the connections that have been idle longest close at once.
    fn make_room(&self) {
        let mut state = self.lock();
        for _ in 0..MAX_LEAVING {
            let longest = state.leaving.pop_first().or_else(|| state.idle.pop_first());
            let Some((_, notices)) = longest else {
                return;
            };
            notices.leave.notify_one();
            notices.hurry.notify_one();
        }
    }
}

impl State {
    /// Forgets an idle period that has ended.
    fn end_idle(&mut self, number: u64) {
        self.idle.remove(&number);
        self.leaving.remove(&number);
    }
}

impl Place {
    /// Returns the kind of the place.
    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// Notes that a request may come from now on, after the handshake of TLS.
    pub(crate) fn open(&mut self) {
        self.opened = Instant::now();
    }

    /// Returns a handle that records the requests of this connection.
    pub(crate) fn tracker(&self) -> RequestTracker {
        RequestTracker {
            connections: Arc::clone(&self.connections),
            notices: Arc::clone(&self.notices),
            count: Arc::clone(&self.count),
        }
    }

    /// Says whether the connection has no request.
    pub(crate) fn is_idle(&self) -> bool {
        lock(&self.count).n_requests == 0
    }

    /// Waits until the connection has been idle for `limit` or is asked to close.
    pub(crate) async fn is_to_leave(&self, limit: Duration) {
        tokio::select! {
            () = self.is_asked_to_leave() => {}
            () = self.idle_for(limit) => {}
        }
    }

    /// Waits for the request to close. A connection whose first request arrives meanwhile stays, and is idle again after it.
    async fn is_asked_to_leave(&self) {
        loop {
            self.notices.leave.notified().await;
            if lock(&self.count).has_begun {
                return;
            }
            self.has_waited_for_request().await;
            if !lock(&self.count).has_begun {
                return;
            }
        }
    }

    /// Waits until the first request has arrived or had the time to.
    pub(crate) async fn has_waited_for_request(&self) {
        if !lock(&self.count).has_begun {
            sleep_until(self.opened + FIRST_REQUEST_TIME).await;
        }
    }

    /// Waits until another connection needs the place at once.
    pub(crate) async fn is_to_hurry(&self) {
        self.notices.hurry.notified().await;
    }

    async fn idle_for(&self, limit: Duration) {
        loop {
            let since = lock(&self.count).idle;
            let Some((since, number)) = since else {
                self.notices.idle.notified().await;
                continue;
            };
            sleep_until(since + limit).await;
            if lock(&self.count).idle.is_some_and(|(_, now)| now == number) {
                return;
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.connections.lock();
        match self.kind {
            Kind::Usual => state.n_open -= 1,
            Kind::Reserved => state.n_reserved -= 1,
        }
        if let Some((_, number)) = lock(&self.count).idle {
            state.end_idle(number);
        }
        drop(state);
        self.connections.freed.notify_one();
    }
}

/// Records the requests of a connection.
#[derive(Clone, Debug)]
pub(crate) struct RequestTracker {
    connections: Arc<Connections>,
    notices: Arc<Notices>,
    count: Arc<Mutex<RequestCount>>,
}

impl RequestTracker {
    /// Records that a request begins.
    pub(crate) fn begin(&self) -> RequestGuard {
        let mut state = self.connections.lock();
        let mut count = lock(&self.count);
        count.n_requests += 1;
        count.has_begun = true;
        if let Some((_, number)) = count.idle.take() {
            state.end_idle(number);
        }
        RequestGuard {
            connections: Arc::clone(&self.connections),
            notices: Arc::clone(&self.notices),
            count: Arc::clone(&self.count),
        }
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        let mut state = self.connections.lock();
        let mut count = lock(&self.count);
        count.n_requests -= 1;
        if count.n_requests == 0 {
            let number = self.connections.begin_idle(&mut state, &self.notices);
            count.idle = Some((Instant::now(), number));
            self.notices.idle.notify_one();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longer than any event of these tests takes.
    const LONG: Duration = Duration::from_hours(1);
    /// Time for which the tests watch that nothing happens.
    const SHORT: Duration = Duration::from_millis(160);

    #[tokio::test]
    async fn the_longest_idle_makes_room_and_one_that_is_asked_does_not() {
        let connections = Connections::new(3);
        let (first, second, third) = (
            connections.enter().await,
            connections.enter().await,
            connections.enter().await,
        );
        // The first has a request and the third had one, so the second has been idle longest.
        let busy = first.tracker().begin();
        drop(third.tracker().begin());
        let entering = tokio::spawn({
            let connections = Arc::clone(&connections);
            async move { connections.enter().await.kind() }
        });
        second.is_to_leave(LONG).await;
        drop(second);
        assert_eq!(entering.await.expect("no panic"), Kind::Usual);
        assert!(!first.is_idle() && third.is_idle());
        drop(busy);
        assert!(first.is_idle());
    }

    #[tokio::test]
    async fn half_of_the_places_are_the_most_that_are_idle() {
        let connections = Connections::new(8);
        let mut places = Vec::new();
        for _ in 0..6 {
            places.push(connections.enter().await);
        }
        for (at, place) in places.iter().enumerate() {
            let leaves = timeout(SHORT, place.is_to_leave(LONG)).await.is_ok();
            assert_eq!(leaves, at < 2, "{at}");
        }
        // A connection that was already asked to close hurries when its place is needed.
        let hurries = async |place: &Place| timeout(SHORT, place.is_to_hurry()).await.is_ok();
        assert!(!hurries(&places[0]).await);
        connections.make_room();
        assert!(hurries(&places[0]).await && hurries(&places[5]).await);
    }

    #[tokio::test]
    async fn a_connection_whose_first_request_arrives_is_not_closed() {
        let connections = Connections::new(2);
        let (first, second) = (connections.enter().await, connections.enter().await);
        // With the second, more than half of the places are idle, and the first has been idle longest.
        let request = async {
            tokio::time::sleep(FIRST_REQUEST_TIME / 2).await;
            first.tracker().begin()
        };
        let (leaves, busy) = tokio::join!(timeout(2 * FIRST_REQUEST_TIME, first.is_to_leave(LONG)), request);
        assert!(leaves.is_err());
        drop((busy, second));
        assert!(first.is_idle());
    }

    #[tokio::test]
    async fn where_all_are_busy_a_probe_has_a_place_and_others_wait() {
        let connections = Connections::new(1);
        let place = connections.enter().await;
        let busy = place.tracker().begin();
        let mut reserved = vec![connections.enter().await];
        while let Some(place) = connections.take(Kind::Reserved) {
            reserved.push(place);
        }
        assert_eq!(reserved.len(), RESERVED);
        assert!(reserved.iter().all(|place| place.kind() == Kind::Reserved));
        let entering = timeout(ROOM_WAIT + SHORT, connections.enter()).await;
        assert!(entering.is_err(), "all are taken");
        drop((busy, place));
        assert_eq!(connections.enter().await.kind(), Kind::Usual);
        drop(reserved);
        let state = connections.lock();
        assert_eq!(
            (
                state.n_open,
                state.n_reserved,
                state.idle.len(),
                state.leaving.len()
            ),
            (0, 0, 0, 0)
        );
    }

    #[tokio::test]
    async fn the_time_of_being_idle_begins_with_the_end_of_the_last_request() {
        let connections = Connections::new(1);
        let place = connections.enter().await;
        let limit = Duration::from_millis(30);
        let (one, two) = (place.tracker().begin(), place.tracker().begin());
        assert!(timeout(SHORT, place.is_to_leave(limit)).await.is_err());
        drop(one);
        assert!(timeout(SHORT, place.is_to_leave(limit)).await.is_err());
        let begun = Instant::now();
        drop(two);
        place.is_to_leave(limit).await;
        assert!(begun.elapsed() >= limit);
    }
}
