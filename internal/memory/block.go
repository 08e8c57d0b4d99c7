package memory

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
)

// Block is memory of Alloc that all users of the process may have messages in. They find it by its
// addresses. Its owner closes it only when none of them needs it.
type Block struct {
	Bytes []byte
	Kind

	closing atomic.Bool
	ending  sync.Mutex // one Close or End at a time; taken before the locks of users
	ended   bool
}

// Kind is where memory comes from.
type Kind struct {
	Mapped bool // a provider whose peers load and store its own memory has made it
	Freed  bool // its owner frees it; else it lives as long as a slice of it
}

// User is what has messages in memory: a node, or a job.
type User interface {
	// LetGo ends the use of a block that is not its own, so that nothing accesses the block any more, nor
	// will until [Block.Open] says yes again. It does nothing and says so if the block is in use. An error
	// says that the use cannot be ended: the block must never be freed. With wait it waits for a user that
	// ends; that must not wait for an End before it has let go of the blocks of others.
	LetGo(k *Block, wait bool) (busy bool, err error)
}

// blocks are those of the process.
var blocks Index[Block]

var users struct {
	sync.Mutex
	list []User
}

// Enter adds a user.
func Enter(u User) {
	users.Lock()
	defer users.Unlock()
	users.list = append(users.list, u)
}

// Leave removes a user that accesses no block of others any more.
func Leave(u User) {
	users.Lock()
	defer users.Unlock()
	users.list = slices.DeleteFunc(users.list, func(o User) bool { return o == u })
}

// Share makes b a block of the process. The owner ends that with Close or End.
func Share(b []byte, kind Kind) *Block {
	k := &Block{Bytes: b, Kind: kind}
	blocks.Add(b, k)
	return k
}

// Shared returns the block that b lies in; nil for none.
func Shared(b []byte) *Block { return blocks.Find(b) }

// Open says whether the block may be used. A user must look with the lock held that its LetGo takes.
func (k *Block) Open() bool { return !k.closing.Load() }

// ErrUsed: something else in the process uses the block.
var ErrUsed = errors.New("something else in this process uses the memory")

// Close has all users let go, and then calls own, by which the owner does. If a user keeps the block, which is
// [ErrUsed], or own returns an error, the block stays, and is open again. Otherwise stuck says why the
// memory must not be freed, if so. After that, and after End, Close only calls own.
func (k *Block) Close(own func() error) (stuck, err error) {
	k.ending.Lock()
	defer k.ending.Unlock()
	if k.ended {
		return nil, own()
	}
	busy, stuck := k.letGo(false)
	if busy {
		err = ErrUsed
	} else {
		err = own()
	}
	if err != nil {
		k.closing.Store(false)
		return nil, errors.Join(err, stuck)
	}
	k.ended = true
	blocks.Remove(k.Bytes, false)
	return stuck, nil
}

// End is Close by an owner that ends whether a user keeps the block or not. Its error says why the
// memory must not be freed.
func (k *Block) End() error {
	k.ending.Lock()
	defer k.ending.Unlock()
	if k.ended {
		return nil
	}
	k.ended = true
	busy, stuck := k.letGo(true)
	blocks.Remove(k.Bytes, false)
	if busy {
		stuck = errors.Join(stuck, ErrUsed)
	}
	return stuck
}

// letGo closes the block to all users.
func (k *Block) letGo(wait bool) (busy bool, err error) {
	k.closing.Store(true)
	users.Lock()
	list := slices.Clone(users.list)
	users.Unlock()
	for _, u := range list {
		b, e := u.LetGo(k, wait)
		busy, err = busy || b, errors.Join(err, e)
	}
	return busy, err
}
