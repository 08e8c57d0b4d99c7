// Command needs reads the logs that package need writes.
//
//	needs plan guest|user|networks LOG...
//
// prints, for each package, the tests that have been skipped for want of what a guest with
// RDMA devices has (or a user without privileges, or the networks of internal/nettest), as
// a pattern for go test -run: folder and pattern, separated by a tab.
//
//	needs check LOG...
//
// fails if a test has been skipped for some need in all parts of CI, each of which has
// written one of the logs, or if no device has some capability.
package main

import (
	"errors"
	"fmt"
	"os"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "needs:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	usage := errors.New("usage: needs plan guest|user|networks LOGS, or needs check LOGS")
	if len(args) < 2 {
		return usage
	}
	switch command, args := args[0], args[1:]; command {
	case "plan":
		wanted, ok := machines[args[0]]
		if !ok {
			return usage
		}
		parts, err := readLogs(args[1:])
		if err != nil {
			return err
		}
		for _, p := range plan(parts, wanted) {
			fmt.Printf("%s\t%s\n", p.folder, p.pattern)
		}
		return nil
	case "check":
		parts, err := readLogs(args)
		if err != nil {
			return err
		}
		found := check(parts)
		for _, line := range found.wrong {
			fmt.Println(line)
		}
		fmt.Printf("%d tests have stated their needs\n", found.tests)
		if len(found.wrong) > 0 {
			return fmt.Errorf("%d needs have been met nowhere", len(found.wrong))
		}
		return nil
	}
	return usage
}
