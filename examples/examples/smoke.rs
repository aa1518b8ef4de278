//! Smoke.
use std::time::{Duration,Instant};
use wheellock::*;
fn main(){
 let url=std::env::args().nth(1).unwrap();
 let c=Client::builder().url(&url).watchdog_lease(Duration::from_secs(1)).build().unwrap();
 let d=Client::builder().url(&url).watchdog_lease(Duration::from_secs(1)).build().unwrap();
 let l=c.lock("orders:42");
 let g=l.lock().unwrap();
 println!("{g:?} {:?}", l.remaining_lease());
 let g2=l.lock().unwrap();
 println!("{} {:?}", l.hold_count(), g2.unlock());
 println!("{:?}", d.lock("orders:42").try_lock().unwrap().is_none());
 let t=Instant::now();
 println!("{:?} {:?}", d.lock("orders:42").try_lock_for(Duration::from_millis(2500)).unwrap().is_none(), t.elapsed());
 println!("{:?} {:?}", g.is_held(), c.stats());
 let h=std::thread::spawn(move||{ let g=d.lock("orders:42").lock().unwrap(); (Instant::now(), g.unlock())});
 std::thread::sleep(Duration::from_millis(300));
 let t=Instant::now();
 println!("{:?}", g.unlock());
 let (a,r)=h.join().unwrap();
 println!("handover {:?} {:?}", a-t, r);
 let n=20000; let t=Instant::now();
 for _ in 0..n { l.lock().unwrap().unlock().unwrap(); }
 println!("pair {:?}", t.elapsed()/n);
 println!("{:?}", c.shutdown(Duration::from_secs(1)));
}
