package boot_test

import (
	"context"
	"fmt"
	"os"
	"strconv"

	"github.com/sluice-hpc/sluice/internal/boot"
	"github.com/sluice-hpc/sluice/internal/launch"
)

func init() { boot.Acts["run"] = run }

// run does what "sluice run -n SIZE COMMAND" does, without a program to build.
func run() int {
	size, err := strconv.Atoi(os.Args[1])
	if err == nil {
		var r launch.Result
		r, err = launch.Run(context.Background(), launch.Options{
			Size: size, Args: os.Args[2:], Env: append(os.Environ(), "BOOT_TEST_DO=exchange"), Stdout: os.Stdout, Stderr: os.Stderr,
		})
		if err == nil {
			return r.ExitStatus()
		}
	}
	fmt.Println("error:", err)
	return 3
}
