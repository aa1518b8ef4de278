//! Every kind of lock without a rival, beside the raw scripts that it must run.
//!
//! Criterion runs them one after the other. For the ratio run `lock_report family`, which runs them in turn.

use criterion::{Criterion, criterion_group, criterion_main};
use wheellock_benches::family;
use wheellock_fixture::Server;

fn kinds(criterion: &mut Criterion) {
    let server = Server::start();
    for (kind, contenders) in family(&server) {
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
