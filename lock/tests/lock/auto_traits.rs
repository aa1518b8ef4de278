//! What threads and panics may do with the public types. It is the compiler that tests.

use std::panic::{RefUnwindSafe, UnwindSafe};

use wheellock::{
    Backoff, Client, ClientBuilder, CountDownLatch, ExpirableSemaphore, FencedGuard, FencedLock,
    Lock, LockGuard, LostFuture, Memory, MultiGuard, MultiLock, OwnedGuard, Permit, Permits,
    ReadWriteLock, RedGuard, RedLock, Semaphore, Wait,
};

#[test]
fn guards_locks_and_clients_are_unwind_safe() {
    fn check<T: UnwindSafe + RefUnwindSafe>() {}
    check::<Client>();
    check::<ClientBuilder>();
    check::<Memory>();
    check::<(Lock, FencedLock, ReadWriteLock, MultiLock, RedLock)>();
    check::<(LockGuard, OwnedGuard, FencedGuard, MultiGuard, RedGuard)>();
    check::<(Semaphore, ExpirableSemaphore, CountDownLatch, Permit, Permits)>();
    check::<(Backoff, Wait<'_>, LostFuture)>();
}

#[test]
fn locks_go_to_every_thread_and_so_do_guards_of_no_thread() {
    fn check<T: Send + Sync>() {}
    check::<(Client, ClientBuilder, Memory)>();
    check::<(Lock, FencedLock, ReadWriteLock, MultiLock, RedLock, OwnedGuard, LostFuture)>();
    check::<(Semaphore, ExpirableSemaphore, CountDownLatch, Permit, Permits)>();
}
