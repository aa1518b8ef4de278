//! Every kind of lock without contention, beside the scripts that it runs, on a plain socket.
//!
//! Criterion runs them one after the other. For the ratio use `lock_report family`, which runs them
//! in turn.

use criterion::{Criterion, criterion_group, criterion_main};
use wheellock_benches::lock_kinds;
use wheellock_fixture::Server;

fn kinds(criterion: &mut Criterion) {
    let server = Server::start();
    for (kind, contenders) in lock_kinds(&server) {
        let mut group = criterion.benchmark_group(kind.replace(' ', "_"));
        for mut contender in contenders {
            group.bench_function(contender.name(), |bencher| {
                bencher.iter(|| contender.sample());
            });
        }
        group.finish();
    }
}

criterion_group!(benches, kinds);
criterion_main!(benches);
