package impi

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// silence gives each rank so many peers more that are silent, before those that it has.
func silence(t testing.TB, w []*Comm, peers int) {
	for i, c := range w {
		d := c.e.links[(i+1)%len(w)].carrier.(*rcCarrier).d
		c.e.lock.Lock()
		defer c.e.lock.Unlock()
		own := d.lanes
		d.lanes = nil
		for range peers {
			d.lanes = append(d.lanes, &rcCarrier{d: d, lanes: lanes{in: new(lane)}})
		}
		d.lanes = append(d.lanes, own...)
		t.Cleanup(func() {
			c.e.lock.Lock()
			defer c.e.lock.Unlock()
			d.lanes = own
		})
	}
}

// TestManyLanes: of many peers that share memory each is heard, in waits, which look at a few lanes at a
// time, and by a single call, which looks at all.
func TestManyLanes(t *testing.T) {
	w := worlds(t, place{"shm", 4, 1, Config{Providers: []string{"shm"}}})
	silence(t, w, 3*coldLanes)
	root := w[0]
	d := root.e.links[1].carrier.(*rcCarrier).d
	got := make([]byte, 1)
	for round := range 4 {
		for i, c := range w[1:] {
			require.NoError(t, c.Send(within(t), []byte{byte(round)}, 0, i))
			switch round {
			case 0, 1:
				require.Equal(t, Status{Source: i + 1, Tag: i, Len: 1}, received(t, root, got, AnySource, AnyTag))
			case 2:
				st, ok := root.RecvNow(got, AnySource, AnyTag)
				require.True(t, ok)
				require.Equal(t, i+1, st.Source)
			default:
				found, _ := iprobe(t, root, i+1, i)
				require.True(t, found)
				received(t, root, got, i+1, i)
			}
			require.Equal(t, byte(round), got[0])
			if round > 1 { // so that the next one is cold
				root.e.lock.Lock()
				clear(d.hot[:])
				root.e.lock.Unlock()
			}
		}
		if round == 1 {
			for _, l := range root.e.links[1:] {
				require.True(t, slices.Contains(d.hot[:], l.carrier.(*rcCarrier)))
			}
		}
	}
}
