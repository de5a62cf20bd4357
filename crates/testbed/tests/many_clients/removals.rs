//! The danger: a file goes while another client has bytes of it that are stored nowhere; nobody can store them any more, and
//! that client's other files wait behind them, or it cannot stop. Or it goes right behind a change, which then fails though it
//! took effect.

use std::time::Duration;

use bytes::Bytes;
use client::{Client, WriteAt};
use host::sim::{self, Verdict};
use protocol::file::SetAttributes;
use protocol::id::InodeId;
use protocol::manager::ManagerRequest;

use super::machines::Machines;
use super::plain;

const BYTES: usize = 50_000;

async fn make(client: &Client, name: &Bytes) -> InodeId {
    let inode = client.create_open(InodeId::ROOT, name.clone(), plain()).await.expect("the name is new").inode;
    client.write(inode, WriteAt::Offset(0), Bytes::from(vec![1; BYTES])).await.expect("there is room");
    inode
}

#[test]
fn what_others_removed_holds_nobody_up() {
    sim::explore(0..8, async |world, _| {
        let mut dice = world.dice();
        let machines = Machines::start(&world, 1 + dice.below(2) as usize, 2).await;
        let ((node, writer), (other, remover)) = (machines.client(0), machines.client(1));
        let (doomed, kept) = (Bytes::from_static(b"doomed"), Bytes::from_static(b"kept"));
        let (making, name) = (writer.clone(), doomed.clone());
        let other_made = remover.clone();
        let made = async move {
            let inode = make(&other_made, &name).await;
            other_made.fsync(inode, false).await.expect("it is stored");
            other_made.close(inode).await;
            inode
        };
        let inode = world.spawn(&world.host(other), made).await.unwrap();
        let overwritten = async move {
            making.open(inode).await.expect("it is there");
            let bytes = Bytes::from_static(b"not for long");
            making.write(inode, WriteAt::Offset(777), bytes).await.expect("there is room");
            making.close(inode).await;
        };
        world.spawn(&world.host(node), overwritten).await.unwrap();
        let removed = async move { remover.unlink(InodeId::ROOT, doomed).await };
        world.spawn(&world.host(other), removed).await.unwrap().expect("it is there");
        let stopped = async move {
            let inode = make(&writer, &kept).await;
            writer.sync_all().await.expect("what is there is stored");
            assert_eq!(writer.read(inode, 0, BYTES as u32).await.expect("it can be read").concat(), vec![1; BYTES]);
            writer.stop().await.expect("nothing is left to store");
        };
        world.spawn(&world.host(node), stopped).await.unwrap();
    });
}

#[test]
fn what_took_effect_before_a_file_went_has_not_failed() {
    sim::explore(0..8, async |world, _| {
        let machines = Machines::start(&world, 1 + world.dice().below(2) as usize, 2).await;
        let ((node, changer), (other, remover)) = (machines.client(0), machines.client(1));
        let [name, second] = ["file", "second"].map(Bytes::from);
        let (making, made) = (remover.clone(), name.clone());
        let made = async move {
            let inode = make(&making, &made).await;
            let held = make(&making, &Bytes::from("held")).await;
            making.sync_all().await.expect("there is room");
            making.close(inode).await;
            making.close(held).await;
            (inode, held)
        };
        let (inode, held) = world.spawn(&world.host(other), made).await.unwrap();
        let opening = changer.clone();
        world.spawn(&world.host(node), async move { opening.open(held).await }).await.unwrap().expect("it is there");
        // Changes are slow, and what is asked behind them comes when the file is gone.
        let delays = |request: &ManagerRequest| match request {
            ManagerRequest::Once(_) | ManagerRequest::Link { .. } | ManagerRequest::SetAttributes(..) => 1,
            ManagerRequest::Attributes(_) => 2,
            _ => 0,
        };
        world.judge_messages(move |passing| match passing.message.peek().downcast_ref::<ManagerRequest>() {
            Some(request) if passing.caller == node => Verdict::Delay(Duration::from_secs(delays(request))),
            _ => Verdict::Pass,
        });
        let mode = |mode| SetAttributes { mode: Some(mode), ..SetAttributes::default() };
        let (linking, to) = (changer.clone(), second.clone());
        let linked = world.spawn(&world.host(node), async move { linking.link(inode, InodeId::ROOT, to).await });
        let changed = world.spawn(&world.host(node), async move { changer.set_attributes(inode, mode(0o600)).await });
        let removed = async move {
            // Who waits for its answers has to give something up, and asks once more.
            remover.set_attributes(held, mode(0o600)).await.expect("it is there");
            remover
        };
        let remover = world.spawn(&world.host(other), removed).await.unwrap();
        world.sleep(Duration::from_secs(2)).await;
        let removed = async move {
            for name in [name, second] {
                remover.unlink(InodeId::ROOT, name).await.expect("it has two names");
            }
        };
        world.spawn(&world.host(other), removed).await.unwrap();
        assert!(linked.await.unwrap().is_ok(), "the link was there");
        assert!(changed.await.unwrap().is_ok(), "it was changed");
    });
}
